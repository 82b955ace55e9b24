"""Megatron's fused cross entropy, but with a gradient that is not rounded to bfloat16.

The release rounds it whatever the logits are, by 1e-3 and more: errors that are looked for would hide in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from overlay.compat.cuda_on_cpu import replaced


@contextlib.contextmanager
def exact_cross_entropy() -> Iterator[None]:
    """Leave the rounding out for as long as this lasts."""
    from megatron.core.fusions import fused_cross_entropy

    with replaced(fused_cross_entropy, "calculate_gradients", _calculate_gradients):
        yield


def _calculate_gradients(softmax: Any, grad_output: Any, target_mask: Any, masked_target_1d: Any) -> Any:
    from megatron.core.tensor_parallel.cross_entropy import VocabParallelCrossEntropy

    operands = VocabParallelCrossEntropy.prepare_gradient_calculation_operands(softmax, target_mask)
    flat, rows, update, gradient = operands
    return VocabParallelCrossEntropy.calculate_gradients(
        flat, rows, masked_target_1d, update, gradient, grad_output
    )
