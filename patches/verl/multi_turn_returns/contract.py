"""The contract of `verl.multi-turn-returns`: advantages are those of plain arithmetic in float64."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong in what verl makes of drawn rollouts, empty if nothing is."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    import torch
    from verl.trainer.ppo import core_algos

    draw = random.Random(seed)
    by_name = core_algos.get_adv_estimator_fn("reinforce_plus_plus")
    if core_algos.get_adv_estimator_fn(core_algos.AdvantageEstimator.REINFORCE_PLUS_PLUS) is not by_name:
        return "one estimator by its name and another by its enum"
    for case in range(40):
        turns, rejected = (1, 0.0) if case % 4 == 0 else (draw.choice((1, 4)), draw.choice((0.0, 0.3)))
        rows = [draw_rollout(draw, turns, rejected) for _ in range(draw.randint(2, 6))]
        if case % 5 == 4:  # a response that is rejected whole
            rows[-1] = ([0] * len(rows[-1][0]), rows[-1][1])
        if sum(len(_own(row)) for row, _ in rows) < 2:
            continue
        width = max(len(mask) for mask, _ in rows) + draw.randint(0, 3)
        mask = torch.zeros(len(rows), width, dtype=draw.choice((torch.int64, torch.float32)))
        rewards = torch.zeros(len(rows), width)
        for index, (row, row_rewards) in enumerate(rows):
            mask[index, : len(row)] = torch.tensor(row)
            rewards[index, : len(row)] = torch.tensor(row_rewards)
        gamma = draw.choice((1.0, 0.9))
        inputs = {"token_level_rewards": rewards, "response_mask": mask}
        config = SimpleNamespace(gamma=gamma)
        advantages, returns = by_name(**inputs, config=config, index=None)
        expected = reference(rows, width, gamma)
        for name, found, right in zip(
            ("advantages", "returns"), (advantages, returns), expected, strict=True
        ):
            if not torch.allclose(found.double(), torch.tensor(right).double(), rtol=1e-4, atol=1e-4):
                return f"{name} of masks {mask.tolist()}, rewards {rewards.tolist()}: {found.tolist()}"
        if case % 4 == 0:
            plain = core_algos.compute_reinforce_plus_plus_outcome_advantage(**inputs, config=config)
            if not (torch.equal(advantages, plain[0]) and torch.equal(returns, plain[1] * mask)):
                return "without a gap it is not to the bit what verl computes"
    return ""


def draw_rollout(draw: random.Random, turns: int, rejected: float) -> tuple[list[int], list[float]]:
    """Draw which tokens are the policy's, and rewards: an outcome on the last token, penalties on its own.

    Args:
        draw: What is drawn from.
        turns: Of the policy.
        rejected: The share of its tokens that are left out.

    """
    mask: list[int] = []
    for turn in range(turns):
        mask += [0] * draw.randint(0, 2) * (turn > 0) + [1] * draw.randint(1, 3)
    ends_with_observation = turns > 1 and draw.random() < 0.3
    mask += [0] * ends_with_observation
    penalty = draw.choice((0.0, 0.1))
    rewards = [-penalty * draw.random() * own for own in mask]
    rewards[-1] += draw.choice((0.0, 1.0))
    return [own * (draw.random() >= rejected) for own in mask], rewards


def reference(
    rows: list[tuple[list[int], list[float]]], width: int, gamma: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Return advantages and returns of the policy's tokens. Each of them discounts their later rewards."""
    returns = []
    for mask, rewards in rows:
        row = [0.0] * width
        for token in _own(mask):
            later = [end for end in _own(mask) if end >= token]
            row[token] = sum(gamma ** sum(mask[token + 1 : end + 1]) * rewards[end] for end in later)
        returns.append(row)
    values = [row[token] for row, (mask, _) in zip(returns, rows, strict=True) for token in _own(mask)]
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    scale = 1 / math.sqrt(variance + 1e-8)
    advantages: list[list[float]] = []
    for row, (mask, _) in zip(returns, rows, strict=True):
        counted = set(_own(mask))
        advantages.append(
            [(row[token] - mean) * scale if token in counted else 0.0 for token in range(width)]
        )
    return advantages, returns


def _own(mask: list[int]) -> list[int]:
    return [token for token, own in enumerate(mask) if own]


CONTRACT = Contract(check=with_patches(wrong, "verl.multi-turn-returns"), before=("verl.protocol",))
