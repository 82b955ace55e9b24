"""Advantages of the responses that are left are those of a batch in which the rejected ones never were."""

import os
import random
import statistics
from typing import Any

from overlay.patch import Contract
from overlay.testing import as_without, with_patches

_ESTIMATORS = ("grpo", "grpo_vectorized", "opo", "reinforce_plus_plus_baseline", "rloo", "rloo_vectorized")
TOLERANCE = 1e-4


def _batch(draw: random.Random, rejected: float) -> tuple[list[str], Any, Any]:
    """Draw groups, rewards, and masks, of which the first two of each group count: [responses, tokens]."""
    import torch

    groups, rewards, masks = [], [], []
    for group in range(draw.randint(1, 4)):
        for at in range(draw.randint(3, 6)):
            length = draw.randint(1, 4)
            keep = at < 2 or draw.random() >= rejected
            groups.append(f"prompt {group}")
            # The first two are never alike: what is divided by their deviation would be rounding.
            reward = (-1) ** at * draw.uniform(0.2, 1)
            rewards.append([reward * (token == length - 1) for token in range(4)])
            masks.append([float(keep and token < length) for token in range(4)])
    order = list(range(len(groups)))
    draw.shuffle(order)
    return (
        [groups[at] for at in order],
        torch.tensor([rewards[at] for at in order]),
        torch.tensor([masks[at] for at in order]),
    )


def advantages(estimator: str, groups: Any, rewards: Any, masks: Any, *, deviation: bool = True) -> Any:
    """Return what verl's trainer computes of a batch."""
    import numpy as np
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.trainer.ppo import ray_trainer

    data = DataProto.from_dict(
        {"token_level_rewards": rewards.clone(), "response_mask": masks.clone()},
        non_tensors={"uid": np.array(groups, dtype=object)},
    )
    data = ray_trainer.compute_advantage(
        data,
        ray_trainer.AdvantageEstimator(estimator),
        norm_adv_by_std_in_grpo=deviation,
        config=OmegaConf.create(),
    )
    if list(data.non_tensor_batch["uid"]) != groups:
        raise RuntimeError("the batch has other groups from then on")
    return data.batch["advantages"]


def wrong(seed: str) -> str:
    """Return what is wrong with the advantages of a batch of which some are rejected, empty if nothing is."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    os.environ["VERL_FORCE_DEVICE"] = "cpu"  # else 0.6 and 0.7.0 take a module for a device
    draw = random.Random(seed)
    for rejected in (0.7, 0.3, 1.0):
        groups, rewards, masks = _batch(draw, rejected)
        kept = masks.sum(-1) > 0
        fewer = [group for group, keep in zip(groups, kept.tolist(), strict=True) if keep]
        for estimator in _ESTIMATORS:
            found = advantages(estimator, groups, rewards, masks)
            want = advantages(estimator, fewer, rewards[kept], masks[kept])
            if not float((found[kept] - want).abs().max()) <= TOLERANCE or found[~kept].any():
                return (
                    f"{estimator}: rejected responses move the others by {(found[kept] - want).abs().max()}"
                )
        for deviation in (True, False):
            found = advantages("grpo", groups, rewards, masks, deviation=deviation)
            if not float((found - _grpo(groups, rewards, masks, deviation)).abs().max()) <= TOLERANCE:
                return "grpo: other advantages than in plain arithmetic"
    # Where one response is left or none, there is nothing to compare it with but those that were rejected.
    masks[_of(groups)[1:]] = 0
    masks[0, 0] = 1
    found, mine = advantages("rloo", groups, rewards, masks)[0], [rewards[at].sum() for at in _of(groups)]
    others = (sum(mine) - rewards[0].sum()) / (len(mine) - 1)
    right = float((found - (rewards[0].sum() - others) * masks[0]).abs().max()) <= TOLERANCE
    return "" if right else "one response that is left alone is not compared with its group"


def _of(groups: list[str]) -> list[int]:
    return [at for at, group in enumerate(groups) if group == groups[0]]


def _grpo(groups: list[str], rewards: Any, masks: Any, deviation: bool) -> Any:
    """Return GRPO's advantages in plain arithmetic: [responses, tokens]."""
    import torch

    scores, keeps = rewards.double().sum(-1).tolist(), (masks.sum(-1) > 0).tolist()
    rows = []
    for group, score in zip(groups, scores, strict=True):
        mates = [one for one, keep, its in zip(scores, keeps, groups, strict=True) if keep and its == group]
        size = statistics.stdev(mates) if deviation else 1.0
        rows.append((score - statistics.mean(mates)) / size)
    return torch.tensor(rows)[:, None] * masks


def _whole(seed: str) -> Any:
    """Return what is computed of a batch of which nothing is rejected."""
    draw = random.Random(seed)
    batch = _batch(draw, 0.0)
    return [advantages(estimator, *batch).tolist() for estimator in _ESTIMATORS]


CONTRACT = Contract(
    check=with_patches(wrong, "verl.rejected-in-groups"), alike=as_without(_whole), before=("verl.protocol",)
)
