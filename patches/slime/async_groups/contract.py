"""Each group that is generated is trained on, and the worker runs ahead by no more than it may."""

import asyncio
import random
import threading
from types import SimpleNamespace
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return which groups are lost, or how far the worker runs ahead of an engine that is done at once."""
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
            return f"{worker.queue_size()} of {len(done)} groups are left after {turn + 1} rollouts"

    # A queue with a bound stops the thread that generates.
    worker = module.AsyncRolloutWorker(args, None, concurrency=4)
    task = SimpleNamespace(result=list)
    pushing = threading.Thread(
        target=lambda: [worker._make_done_cb(index)(task) for index in range(1001)], daemon=True
    )
    pushing.start()
    pushing.join(100)
    if pushing.is_alive():
        return f"the worker stands still with {worker.queue_size()} groups waiting"

    return asyncio.run(_wrong_ages(module, args, batch, batch * draw.randint(1, 4)))


async def _wrong_ages(module: Any, args: Any, batch: int, concurrency: int) -> str:
    # With nobody who takes groups, it stops asking for prompts.
    given, trained, _ = await _run(module, args, concurrency=3, updates=0)
    if not given or given > 6 or trained:
        return f"with nobody who takes groups, {given} prompts are used at a concurrency of 3"

    # Where generation is faster than training, all are trained on, in the order in which they were made.
    given, trained, ages = await _run(module, args, concurrency=concurrency, updates=20)
    if trained != list(range(len(trained))) or given - len(trained) > 2 * concurrency:
        return f"of {given} groups at a concurrency of {concurrency}, {trained} are trained on"
    if max(ages) > 2 * concurrency // batch:
        return f"groups are up to {max(ages)} updates old, {concurrency} in flight, {batch} a rollout"
    return ""


async def _run(module: Any, args: Any, *, concurrency: int, updates: int) -> tuple[int, list[int], list[int]]:
    """Run the worker in this thread, with an engine that is done at once, and train in between.

    Return how many groups were asked for, which were trained on, and how many updates old each was.
    """
    born: list[int] = []
    trained: list[int] = []
    ages: list[int] = []
    done = 0

    async def generated(_args: Any, group: Any, **_options: Any) -> Any:
        return group

    async def no_time(_seconds: float = 0) -> None:
        # As within a second: what was begun is done, and what is to be called when it is has been.
        for _ in range(4):
            await asyncio.sleep(0)

    def prompts(_number: int) -> list[Any]:
        # A worker without a limit would fill its queue, and wait there for good.
        if worker.queue_size() > 10 * concurrency:
            return []
        born.append(done)
        return [[SimpleNamespace(index=len(born) - 1, status=None)]]

    module.generate_and_rm_group = generated
    module.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": no_time})
    worker = module.AsyncRolloutWorker(args, SimpleNamespace(get_samples=prompts), concurrency=concurrency)
    module._get_global_worker = lambda _args, _buffer: worker
    making = asyncio.ensure_future(worker._loop())
    for update in range(updates + 1):
        # The engine runs ahead: as far as it may, or, of a worker without a limit, some rounds.
        for _ in range(30):
            await asyncio.sleep(0)
        if update < updates:
            groups = await module._generate_rollout_async(args, update, None)
            trained += [group[0].index for group in groups]
            ages += [update - born[group[0].index] for group in groups]
            done = update + 1
    worker.running = False
    await making
    return len(born), trained, ages


CONTRACT = Contract(check=with_patches(wrong, "slime.async-groups"), before=("torch", "ray", "transformers"))
