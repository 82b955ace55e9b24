"""What computes the log-probability of each row's target: overlay's way, and what a user would pick instead.

Each takes logits [T, V] in float32 and targets [T], and returns the log-probabilities [T]. One that is not
installed, or that needs a GPU, is named with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from overlay.patches._packed_loss.row_blocks import Rows
from overlay.patches._packed_loss.vocab_parallel import make_log_prob_entropy

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = Callable[[Any, Any], Any]


def functions(device: str) -> dict[str, Function | str]:
    """Return, by name, the function, or why there is none."""
    # Each size is compiled for itself. After a few of them it would be left uncompiled, without a word.
    torch.compiler.reset()
    return {
        "overlay": overlay(),
        "the same in place": overlay(in_place=True),
        "plain formula": plain,
        "torch.compile of it": torch.compile(plain) if device == "cuda" else "needs a GPU here",
        "Megatron, fused": megatron(),
        "Liger": liger() if device == "cuda" else "needs a GPU",
    }


def overlay(*, in_place: bool = False) -> Function:
    """Return overlay's function, whose gradient may overwrite the logits."""
    compute = make_log_prob_entropy()
    return lambda logits, targets: compute(logits, targets, Rows([(0, len(logits))], in_place=in_place))[0]


def plain(logits: Any, targets: Any) -> Any:
    """Return the formula as it is written."""
    return torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]


def megatron() -> Function | str:
    """Return Megatron's fused cross entropy on a group of this one process."""
    try:
        import torch.distributed as dist
        from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy
    except ImportError as error:
        return f"not installed: {error.name}"
    group = dist.group.WORLD

    def function(logits: Any, targets: Any) -> Any:
        return -fused_vocab_parallel_cross_entropy(logits[:, None], targets[:, None], group)[:, 0]

    return function


def liger() -> Function | str:
    """Return Liger's cross entropy, whose gradient overwrites the logits."""
    try:
        from liger_kernel.transformers.functional import liger_cross_entropy
    except ImportError:
        return "not installed"
    return lambda logits, targets: -liger_cross_entropy(logits, targets, reduction="none")
