"""Say of every loss of verl whether it is a sum over sequences, and what a subgroup's part of it would be.

One process plays W ranks: each subgroup of C ranks computes the loss of its own sequences with `dp_size` = W,
and data parallelism averages, as `verl.dynamic-cp-loss` does with sums. The gradient that this makes is held
against that of the whole micro-batch. The losses are those of `scripts/checks/ranks/loss_kinds.py`.

Exit code: 0 if what is taken for a sum is one, 1 if not.
"""

from __future__ import annotations

import argparse
import random
import secrets
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, SEQUENCES = 4, 12
SIZES = (1, 2, 4)
TOLERANCE = 1e-5


def main(arguments: list[str]) -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="of all that is drawn")
    seed = parser.parse_args(arguments).seed
    warnings.simplefilter("ignore")
    import os

    os.environ.update(OVERLAY_TEST_SEED=str(seed), TORCHDYNAMO_DISABLE="1")
    from overlay.compat.no_triton import no_triton

    with no_triton():
        import loss_kinds
    from overlay.patches._dynamic_cp.losses import is_sum, with_width

    print(f"{'':33}as parts: |g|/|g_ref| (error of g)")
    print(f"{'loss':<33}{''.join(f'C = {size:<14}' for size in SIZES)}computed from")
    right = True
    for name, settings in loss_kinds.kinds().items():
        if settings.get("per_token_loss") or name == "width one":
            continue  # the loss is one of the others
        # One loss at a time: what is added to those of the registry is shown with `vanilla`.
        added = {"entropy", "kl"} if settings.get("loss_mode") == name else set()
        told = {key: value for key, value in settings.items() if key not in added | {"by_width"}}
        batch = _batch(seed, entropy=bool(told.get("entropy")))

        def fresh(told: dict[str, Any] = told) -> Callable[..., Any]:
            return loss_kinds.loss_of(**told)

        found = [_compare(fresh, batch, size, seed) for size in SIZES]
        taken = is_sum(with_width(fresh(), 1))
        way = "parts" if taken else "the whole"
        if taken and settings.get("by_width"):
            way = "parts, with the batch's width"
        elif taken:
            right = right and all(error < TOLERANCE for _, error in found)
        cells = "".join(f"{ratio:<7.4f}({error:.0e})   " for ratio, error in found)
        print(f"{name:<33}{cells}{way}")
    print(f"\n{RANKS} ranks, {SEQUENCES} sequences dealt out in equal numbers, float32, seed {seed}.")
    return 0 if right else 1


def _batch(seed: int, *, entropy: bool) -> Any:
    import torch
    from loss_batches import policy_batch
    from verl.utils import tensordict_utils as tu

    draw = random.Random(seed)
    noise = torch.Generator().manual_seed(seed)

    def log_probs(tokens: Any) -> Any:
        return -3 + 0.5 * torch.randn(len(tokens) - 1, generator=noise)

    batch = policy_batch(draw, log_probs, SEQUENCES)
    tokens = int(batch["loss_mask"].sum())
    tu.assign_non_tensor(batch, batch_num_tokens=tokens, calculate_entropy=entropy)
    return batch


def _compare(
    fresh: Callable[[], Callable[..., Any]], batch: Any, size: int, seed: int
) -> tuple[float, float]:
    """Return |g|/|g_ref| and |g - g_ref|/|g_ref| where g comes from subgroups of `size` ranks."""
    import torch

    rows = range(SEQUENCES)
    count = RANKS // size
    blocks = [list(rows[start::count]) for start in range(count)]
    got = torch.cat([_gradient(fresh, batch, block, RANKS, seed) for block in blocks]) / RANKS
    order = [row for block in blocks for row in block]
    want = _gradient(fresh, batch, order, 1, seed)
    return (got.norm() / want.norm()).item(), ((got - want).norm() / want.norm()).item()


def _gradient(
    fresh: Callable[[], Callable[..., Any]], batch: Any, rows: list[int], dp_size: int, seed: int
) -> Any:
    """Return the gradient by the outputs for some sequences of the batch, one behind the other: [tokens]."""
    import torch
    from verl.utils import tensordict_utils as tu

    part = tu.index_select_tensor_dict(batch, rows)
    tu.assign_non_tensor(part, dp_size=dp_size)
    torch.manual_seed(seed)
    # Not the teacher's nor the old policy's: near to both.
    values = part["teacher_logprobs"].values()[:, 0].detach() + 0.1
    values.requires_grad_()
    outputs = {"log_probs": torch.nested.nested_tensor_from_jagged(values, part["input_ids"].offsets())}
    if tu.get_non_tensor_data(part, "calculate_entropy", default=False):
        outputs["entropy"] = torch.nested.nested_tensor_from_jagged(values**2, part["input_ids"].offsets())
    loss, _ = fresh()(model_output=outputs, data=part, dp_group=None)
    (gradient,) = torch.autograd.grad(loss, values)
    return gradient
