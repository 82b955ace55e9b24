"""slime's advantages by PPO on a rank, held against plain arithmetic over all trained tokens."""

from __future__ import annotations

import inspect
import random
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

from overlay.compat.slime_on_cpu import import_slime
from overlay.compat.slime_on_cpu.advantages import ARGUMENTS

#: Tokens and response tokens of samples: short ones, of which most ranks have nothing, and a long one.
SAMPLES = ((9, 4), (24, 15), (16, 1), (40, 40 - 7), (300, 270))
#: Of which nothing is trained, where there are such.
UNTRAINED = (0, 4)
#: What slime's samples are padded to under `--qkv-format bshd`: more than the longest has.
PADDED = 384
#: Of advantages of about one, over hundreds of tokens: float32's.
TOLERANCE = 1e-4


def estimate(values: Sequence[float], rewards: Sequence[float], gamma: float, lambd: float) -> list[float]:
    """Return the advantages of an episode that ends with its last token."""
    found: list[float] = []
    later, following = 0.0, 0.0
    for value, reward in zip(reversed(values), reversed(rewards), strict=True):
        later = reward + gamma * following - value + gamma * lambd * later
        following = value
        found.append(later)
    return found[::-1]


def layouts() -> list[str]:
    """Return how this slime lays tokens out over context parallel ranks, its default first.

    That is a zigzag over each sample, or over each `padded` sample (`--qkv-format bshd`), or `pieces` of all
    samples in a row (`--allgather-cp`), which slime turns into the first.
    """
    loss, context = import_slime("loss", "cp_utils")
    found = ["zigzag"]
    if "qkv_format" in inspect.signature(context.slice_log_prob_with_cp).parameters:
        found.append("padded")
    if hasattr(loss, "_allgather_cp_redistribute"):
        found.append("pieces")
    return found


def look(kind: str, seed: str, layout: str = "zigzag") -> dict[str, Any]:
    """Return how far this rank's advantages and returns are from those of the trained tokens alone.

    The advantages of other tokens are 0, and their returns the values.

    `kind`: `tools`, with runs of masked tokens, the last token too in some; `whole`, with none; `penalty`,
    with a KL penalty as well; `none`, with samples of which nothing is trained beside others. `seed`: of what
    is drawn, the same on all ranks. `layout`: one of `layouts()`.
    """
    data, wanted = _estimated(kind, seed, layout)
    off = 0.0
    for name, rights in wanted.items():
        for mine, right in zip(data[name], rights, strict=True):
            if mine.shape != right.shape or mine.dtype != torch.float32:
                raise RuntimeError(f"{name} of another shape or type: {mine}, not {right}")
            off = max([off, *(mine - right).abs().tolist()])
    return {"error": off}


def _estimated(kind: str, seed: str, layout: str = "zigzag") -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return this rank's estimates beside all that they are made of, and the right ones."""
    loss, context = import_slime("loss", "cp_utils")
    draw = random.Random(f"{seed}/{kind}")
    gamma, lambd = draw.choice([1.0, 0.99]), draw.choice([0.9, 0.95])
    coefficient = 0.3 if kind == "penalty" else 0.0
    options = {
        **vars(ARGUMENTS),
        "advantage_estimator": "ppo",
        "normalize_advantages": False,
        "kl_coef": coefficient,
        "kl_loss_type": "k1",
        "gamma": gamma,
        "lambd": lambd,
        "qkv_format": "bshd" if layout == "padded" else "thd",
        "allgather_cp": layout == "pieces",
        "rollout_temperature": 1.0,
    }
    data: dict[str, Any] = {
        "total_lengths": [total for total, _ in SAMPLES],
        "response_lengths": [count for _, count in SAMPLES],
        "rewards": [draw.uniform(-2, 2) for _ in SAMPLES],
        "loss_masks": [],
    }
    padding = ("bshd", PADDED) if layout == "padded" else ()
    if padding:
        data["max_seq_lens"] = [PADDED] * len(SAMPLES)

    def own(full: Any, size: tuple[int, int]) -> Any:
        return context.slice_log_prob_with_cp(full, *size, *padding)

    wanted: dict[str, list[Any]] = {"advantages": [], "returns": []}
    values = []
    for index, size in enumerate(SAMPLES):
        untrained = kind == "none" and index in UNTRAINED
        columns, mask = _sample(draw, size[1], kind, untrained=untrained)
        reward = data["rewards"][index]
        advantages, returns = _right(columns, mask, reward, coefficient, (gamma, lambd))
        values.append(columns["values"])
        for name, column in columns.items():
            data.setdefault(name, []).append(own(torch.tensor(column, dtype=torch.float32), size))
        data["loss_masks"].append(torch.tensor(mask, dtype=torch.float32))
        for name, column in (("advantages", advantages), ("returns", returns)):
            wanted[name].append(own(torch.tensor(column), size))
    if layout == "pieces":
        data["values"] = _values_of_pieces(loss, Namespace(**options), values)
    rewards_before = list(data["rewards"])
    loss.compute_advantages_and_returns(Namespace(**options), data)
    dist.barrier()
    if data["rewards"] != rewards_before:
        raise RuntimeError("the rewards were changed")
    return data, wanted


def _values_of_pieces(loss: Any, args: Any, values: Sequence[Sequence[float]]) -> list[Any]:
    """Let slime take the values of responses out of this rank's piece of what the critic's head puts out."""
    rows = torch.cat(
        [
            # The head's output at a token is the value of the next.
            torch.nn.functional.pad(torch.tensor(column), (total - count - 1, 1))
            for (total, count), column in zip(SAMPLES, values, strict=True)
        ]
    )
    ranks = mpu.get_context_parallel_world_size()
    padded = torch.nn.functional.pad(rows, (0, -len(rows) % ranks))
    found = loss.get_values(
        padded.chunk(ranks)[mpu.get_context_parallel_rank()].view(1, -1, 1),
        args=args,
        unconcat_tokens=[torch.zeros(total, dtype=torch.long) for total, _ in SAMPLES],
        total_lengths=[total for total, _ in SAMPLES],
        response_lengths=[count for _, count in SAMPLES],
    )
    return [one.detach() for one in (found if isinstance(found, dict) else found[1])["values"]]


def _sample(
    draw: random.Random, count: int, kind: str, *, untrained: bool
) -> tuple[dict[str, list[float]], list[int]]:
    """Return what there is of each of a sample's tokens, and which are trained."""
    names = ("values", "log_probs", "ref_log_probs")
    columns = {name: [draw.gauss(0, 1) for _ in range(count)] for name in names}
    if untrained:
        return columns, [0] * count
    return columns, [1] * count if kind == "whole" else _mask(draw, count)


def _right(
    columns: dict[str, list[float]],
    mask: list[int],
    reward: float,
    coefficient: float,
    decay: tuple[float, float],
) -> tuple[list[float], list[float]]:
    """Return the advantages and returns of a sample, in plain arithmetic over its trained tokens."""
    own = [position for position, trained in enumerate(mask) if trained]
    new, old = columns["log_probs"], columns["ref_log_probs"]
    rewards = [-coefficient * (new[position] - old[position]) for position in own]
    if own:
        rewards[-1] += reward
    advantages, returns = [0.0] * len(mask), list(columns["values"])
    found = estimate([columns["values"][position] for position in own], rewards, *decay)
    for position, value in zip(own, found, strict=True):
        advantages[position] = value
        returns[position] += value
    return advantages, returns


def _mask(draw: random.Random, count: int) -> list[int]:
    """Return runs of trained and of masked tokens, with at least one that is trained."""
    mask: list[int] = []
    kind = draw.randint(0, 1)
    while len(mask) < count:
        mask += [kind] * draw.randint(1, 9)
        kind = 1 - kind
    mask = mask[:count]
    mask[draw.randrange(count)] = 1
    return mask


KINDS = ("tools", "whole", "penalty", "none")


def wrong(seed: str) -> str:
    """Return what is wrong with the advantages of one rank, empty if nothing is."""
    for kind in KINDS:
        found = look(kind, seed)
        if not found["error"] <= TOLERANCE:
            return f"{kind}: {found}"
    return ""


def alike(seed: str) -> str:
    """Return what differs from slime's own estimates where all tokens are trained, empty if nothing does."""
    from overlay.testing import without

    def made() -> list[Any]:
        data, _ = _estimated("whole", seed)
        return [*data["advantages"], *data["returns"]]

    ours, theirs = without(made)
    # A shape of another kind is a difference as well.
    same = [
        mine.shape == right.shape and torch.allclose(mine, right, atol=TOLERANCE)
        for mine, right in zip(ours, theirs, strict=True)
    ]
    return "" if all(same) else "other estimates than without the patch, where all tokens are trained"
