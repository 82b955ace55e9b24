"""The user's filter gets the groups of each rollout once, in order, before they are handed on."""

import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from overlay.compat.slime_on_cpu import imported
from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return which samples are trained on although the filter has taken them out, or the other way round."""
    module = imported("slime.rollout.fully_async_rollout")
    module.GenerateState = lambda _args: SimpleNamespace(sampling_params={})
    module.run = _run
    draw = random.Random(seed)
    batch = draw.randint(2, 6)
    users: Any = ModuleType("users_filter")
    sys.modules["users_filter"] = users
    calls: list[Any] = []

    def by_reward(given: Any, groups: Any) -> None:
        calls.append((given, [group[0].index for group in groups]))
        for sample in (sample for group in groups for sample in group):
            sample.remove_sample = sample.reward < 0

    users.by_reward = by_reward
    own = f"{module.__name__}.generate_rollout_fully_async"
    # A user's function that calls slime's may apply the filter itself.
    for path, by in (("users_filter.by_reward", own), (None, own), ("users_filter.by_reward", "users.own")):
        args = SimpleNamespace(rollout_global_dataset=True, rollout_batch_size=batch)
        args.rollout_sample_filter_path, args.rollout_function_path = path, by
        filtered = path is not None and by == own
        worker = module.AsyncRolloutWorker(args, None, concurrency=4)
        module._get_global_worker = lambda *_, worker=worker: worker
        for turn in range(2):
            calls.clear()
            numbers = draw.sample(range(100), batch)
            for number in numbers:
                pair = [
                    SimpleNamespace(index=number, reward=draw.uniform(-1, 1), remove_sample=False)
                    for _ in range(2)
                ]
                worker.output_queue.put((number, pair))
            groups = module.generate_rollout_fully_async(args, turn, None)
            if [group[0].index for group in groups] != sorted(numbers):
                return f"groups {numbers} come as {[group[0].index for group in groups]}"
            samples = [sample for group in groups for sample in group]
            removed = [sample.remove_sample for sample in samples]
            if removed != [filtered and sample.reward < 0 for sample in samples]:
                return f"{path} under {by}: of rewards {[s.reward for s in samples]} it removes {removed}"
            if calls != ([(args, sorted(numbers))] if filtered else []):
                return f"the filter was called with {calls}"
    try:
        module.generate_rollout_fully_async(args, 0, None, evaluation=True)
    except ValueError:
        return ""
    return "an evaluation is no longer refused"


def _run(coroutine: Any) -> Any:
    import asyncio

    return asyncio.run(coroutine)


CONTRACT = Contract(
    check=with_patches(wrong, "slime.async-sample-filter"), before=("torch", "ray", "transformers")
)
