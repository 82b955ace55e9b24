"""Each group that is generated is trained on, and the worker runs ahead by no more than it may."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from types import SimpleNamespace
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return which groups are lost, or how far the worker runs ahead, empty if neither is wrong.

    The engine is stood in for: a group is done at once.
    """
    from overlay.compat.slime_on_cpu import imported

    module = imported("slime.rollout.fully_async_rollout")
    module.GenerateState = lambda _args: SimpleNamespace(sampling_params={})
    draw = random.Random(seed)
    batch, extra = draw.randint(2, 6), draw.randint(1, 5)
    args = SimpleNamespace(rollout_global_dataset=True, rollout_batch_size=batch)

    # Groups wait from before, in the order in which they were done, which is not that of their numbers.
    worker = module.AsyncRolloutWorker(args, SimpleNamespace(get_samples=lambda _number: []), concurrency=4)
    module._get_global_worker = lambda _args, _buffer: worker
    done = draw.sample(range(100), 2 * batch + extra)
    for number in done:
        worker.output_queue.put((number, [SimpleNamespace(index=number)]))
    for turn in range(2):
        found = asyncio.run(module._generate_rollout_async(args, turn, None))
        trained = [group[0].index for group in found]
        wanted = sorted(done[turn * batch : (turn + 1) * batch])
        if trained != wanted:
            return f"rollout {turn} of groups done in the order {done} gets {trained} and not {wanted}"
        if worker.queue_size() != len(done) - batch * (turn + 1):
            return (
                f"{worker.queue_size()} of {len(done)} groups are left after {turn + 1} rollouts of {batch}"
            )

    # A queue with a bound stops the thread that generates.
    worker = module.AsyncRolloutWorker(args, None, concurrency=4)
    task = SimpleNamespace(result=list)
    pushing = threading.Thread(
        target=lambda: [worker._make_done_cb(index)(task) for index in range(1001)], daemon=True
    )
    pushing.start()
    pushing.join(10)
    if pushing.is_alive():
        return f"the worker stands still with {worker.queue_size()} groups waiting"

    # With nobody who takes groups, it stops asking for prompts.
    given: list[int] = []

    async def generated(_args: Any, group: Any, **_options: Any) -> Any:
        return group

    def prompts(number: int) -> list[Any]:
        given.append(number)
        return [[SimpleNamespace(index=len(given), status=None)]] if len(given) < 1000 else []

    module.generate_and_rm_group = generated
    # Its loop takes prompts once a second.
    module.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": lambda _seconds: asyncio.sleep(0.01)})
    worker = module.AsyncRolloutWorker(args, SimpleNamespace(get_samples=prompts), concurrency=3)
    worker.start()
    time.sleep(1)
    worker.stop()
    if not 0 < len(given) <= 6:
        return f"with nobody who takes groups, {len(given)} prompts are used at a concurrency of 3"
    return ""


CONTRACT = Contract(check=with_patches(wrong, "slime.async-groups"), before=("torch", "ray", "transformers"))
