"""Advantages and returns are those of plain arithmetic."""

import math
import random
from types import SimpleNamespace

from overlay.patch import Contract
from overlay.testing import with_patches

Rollout = tuple[list[int], list[float]]


def wrong(seed: str) -> str:
    """Return what is wrong with what verl makes of drawn rollouts, empty if nothing is."""
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
        rows = [_draw_rollout(draw, turns, rejected) for _ in range(draw.randint(2, 6))]
        if case % 5 == 4:  # a response that is rejected whole
            rows[-1] = ([0] * len(rows[-1][0]), rows[-1][1])
        if sum(sum(mask) for mask, _ in rows) < 2:
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
        found = by_name(**inputs, config=config, index=None)
        for ours, right in zip(found, _reference(rows, width, gamma), strict=True):
            if not torch.allclose(ours.double(), torch.tensor(right).double(), rtol=1e-4, atol=1e-4):
                return f"of masks {mask.tolist()}, rewards {rewards.tolist()}: {ours.tolist()}, not {right}"
        if case % 4 == 0:
            plain = core_algos.compute_reinforce_plus_plus_outcome_advantage(**inputs, config=config)
            if not (torch.equal(found[0], plain[0]) and torch.equal(found[1], plain[1] * mask)):
                return "without a gap it is not to the bit what verl computes"
    return ""


def _draw_rollout(draw: random.Random, turns: int, rejected: float) -> Rollout:
    """Draw which tokens are the policy's, less a rejected share, and rewards: penalties and an outcome."""
    mask: list[int] = []
    for turn in range(turns):
        mask += [0] * draw.randint(0, 2) * (turn > 0) + [1] * draw.randint(1, 3)
    mask += [0] * (turns > 1 and draw.random() < 0.3)  # it ends with an observation
    penalty = draw.choice((0.0, 0.1))
    rewards = [-penalty * draw.random() * own for own in mask]
    rewards[-1] += draw.choice((0.0, 1.0))
    return [own * (draw.random() >= rejected) for own in mask], rewards


def _reference(rows: list[Rollout], width: int, gamma: float) -> tuple[list[list[float]], list[list[float]]]:
    """Return advantages and returns of the policy's tokens, each of which discounts its later rewards."""
    returns = [[0.0] * width for _ in rows]
    owned = [(row, token) for row, (mask, _) in enumerate(rows) for token, own in enumerate(mask) if own]
    for row, token in owned:
        mask, rewards = rows[row]
        later = [end for one, end in owned if one == row and end >= token]
        returns[row][token] = sum(gamma ** sum(mask[token + 1 : end + 1]) * rewards[end] for end in later)
    values = [returns[row][token] for row, token in owned]
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    advantages = [[0.0] * width for _ in rows]
    for row, token in owned:
        advantages[row][token] = (returns[row][token] - mean) / math.sqrt(variance + 1e-8)
    return advantages, returns


CONTRACT = Contract(check=with_patches(wrong, "verl.multi-turn-returns"), before=("verl.protocol",))
