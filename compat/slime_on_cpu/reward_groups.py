"""slime's real rollout manager in this process, and what it makes of the rewards of drawn rollouts."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from argparse import Namespace
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from overlay.compat.slime_on_cpu import stand_in

#: What starts something, or tells somebody, in the `__init__` of the manager of some release.
_STARTS = (
    "configure_logger", "_start_router", "init_tracking", "init_http_client", "init_rollout_engines",
    "start_rollout_servers", "Lock", "RolloutDataSourceWithBuffer", "MetricChecker",
)  # fmt: skip
ARGUMENTS = {
    "advantage_estimator": "grpo",
    "rewards_normalization": True,
    "grpo_std_normalization": True,
    "custom_reward_post_process_path": None,
    "n_samples_per_prompt": 4,
    "rollout_batch_size": 3,
    "reward_key": None,
    "num_rollout": 1,
    "debug_train_only": True,
    "data_source_path": "unittest.mock.MagicMock",
    "rollout_function_path": "unittest.mock.MagicMock",
    "eval_function_path": "unittest.mock.MagicMock",
    # Of one engine.
    "num_gpus_per_node": 1,
    "rollout_num_gpus_per_engine": 1,
}


class Unset(Namespace):
    """slime's arguments: what is not set is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@contextlib.contextmanager
def manager(**changed: Any) -> Iterator[Any]:
    """Let slime make its rollout manager, in this process, with the arguments as Ray would send them."""
    stand_in()
    import slime.ray.placement_group as placement
    from slime.ray import rollout

    made: list[Any] = []

    def remote(args: Any, pg: Any) -> Any:
        made.append(actor(copy.deepcopy(args), pg))
        return made[0]

    actor = rollout.RolloutManager.__ray_metadata__.modified_class
    handle = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=remote))
    with contextlib.ExitStack() as stack:
        for name in _STARTS:
            if hasattr(rollout, name):
                value = ({}, []) if name == "start_rollout_servers" else mock.MagicMock()
                stack.enter_context(mock.patch.object(rollout, name, value))
        for module in (placement, rollout):
            if hasattr(module, "RolloutManager"):
                stack.enter_context(mock.patch.object(module, "RolloutManager", handle))
        args = Unset(**{**ARGUMENTS, **changed})
        before = dict(vars(args))
        placement.create_rollout_manager(args, None)
        if dict(vars(args)) != before:
            raise RuntimeError("the arguments of the job were changed")
        yield made[0]


def samples(rewards: list[list[list[float]]]) -> list[Any]:
    """Return slime's samples by prompt, rollout and part, as they come flattened."""
    from slime.utils.types import Sample

    found: list[Any] = []
    index = 0
    for prompt, group in enumerate(rewards):
        for parts in group:
            for reward in parts:
                one = Sample(group_index=prompt + 7, index=index, reward=reward)
                for name in ("rollout_id", "group_id"):
                    if hasattr(one, name):
                        setattr(one, name, index)
                found.append(one)
            index += 1
    return found


def wanted(rewards: list[list[list[float]]], *, scaled: bool) -> list[float]:
    """Return the normalised rewards in plain arithmetic.

    `rewards`: by prompt, rollout and part. Each part counts. `scaled`: whether to divide by the standard
    deviation.
    """
    found: list[float] = []
    for group in rewards:
        counted = [reward for parts in group for reward in parts]
        mean = sum(counted) / len(counted)
        spread = 1.0
        if scaled and len(set(counted)) > 1:
            squares = sum((value - mean) ** 2 for value in counted)
            spread = math.sqrt(squares / (len(counted) - 1)) + 1e-6
        found += [(reward - mean) / spread for reward in counted]
    return found


def drawn(draw: random.Random) -> dict[str, list[list[list[float]]]]:
    """Return rollouts by name: as many as slime expects, some trimmed, and some of several samples."""

    def group(count: int, parts: int = 1) -> list[list[float]]:
        return [[float(draw.randint(0, 3))] * draw.randint(1, parts) for _ in range(count)]

    whole = [group(4) for _ in range(3)]
    apart = draw.uniform(0.1, 1)
    return {
        "whole": whole,
        "trimmed": [*whole[:2], whole[2][:2]],
        "trimmed to one": [*whole[:2], whole[2][:1]],
        "solved": [[[1.0]] * 4, group(4), group(3)],
        # Of these, float32's mean is another number.
        "solved, large rewards": [[[983.2213036077507]] * 3, group(4), group(3)],
        "uneven": [group(5), group(4), group(3)],  # as many as slime expects
        "parts": [group(4, 3) for _ in range(3)],
        "own rewards": [
            [[draw.random() for _ in range(draw.randint(1, 3))] for _ in range(4)] for _ in range(3)
        ],
        "own rewards of one mean": [[[1 - apart, 1 + apart], [1.0], [1 + apart, 1.0, 1 - apart]], *whole[:2]],
    }


def faults(seed: str) -> Iterator[str]:
    """Yield what the manager gets wrong."""
    draw = random.Random(f"{seed}/groups")
    for estimator in ("grpo", "gspo", "reinforce_plus_plus_baseline", "reinforce_plus_plus"):
        for deviation in (True, False):
            with manager(advantage_estimator=estimator, grpo_std_normalization=deviation) as one:
                for name, rewards in drawn(draw).items():
                    given = samples(rewards)
                    raw, found = one._post_process_rewards(given)
                    scaled = deviation and estimator in ("grpo", "gspo")
                    right = raw if estimator == "reinforce_plus_plus" else wanted(rewards, scaled=scaled)
                    off = max(abs(mine - true) for mine, true in zip(found, right, strict=True))
                    if raw != [sample.reward for sample in given] or not off <= TOLERANCE:
                        yield f"{estimator}, deviation {deviation}, {name}: off by {off:.2g}"


#: Of rewards of about one, divided by a deviation of no less than a part in a thousand: float32's.
TOLERANCE = 1e-4


def wrong(seed: str) -> str:
    """Return what is wrong, empty if nothing is."""
    return next(faults(seed), "")


def left_as_it_is(seed: str) -> list[Any]:
    """Return what becomes of rewards that slime groups rightly, has no group of, or hands to its user."""
    groups = drawn(random.Random(seed))
    whole, nameless, trimmed = (samples(groups[name]) for name in ("whole", "whole", "trimmed"))
    nameless[3].group_index = None
    for sample in trimmed:
        sample.group_index = None
    apart = samples(groups["whole"])
    for sample in apart:
        sample.group_index = sample.index
    with manager() as one:
        found = [one._post_process_rewards(given)[1] for given in (whole, nameless, trimmed, apart)]
    # One rollout for each prompt, with several samples: slime compares all of them.
    with manager(n_samples_per_prompt=1, grpo_std_normalization=False) as one:
        found.append(one._post_process_rewards(samples([group[:1] for group in groups["parts"]]))[1])
    with manager(custom_reward_post_process_path=f"{__name__}.theirs") as one:
        return [*found, one._post_process_rewards(samples(groups["trimmed"]))]


def theirs(_args: Any, given: list[Any]) -> Any:
    """Stand for the function of a user."""
    return [sample.reward for sample in given], [sample.reward + 1 for sample in given]
