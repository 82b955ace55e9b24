"""slime's layer that gathers the whole sequence on every rank, held against one process in float64.

A causal mixing is in the place of the attention of Hugging Face.
"""

from __future__ import annotations

import importlib
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core import parallel_state as mpu

from overlay.compat.slime_on_cpu import import_slime

#: Size of a token.
HIDDEN = 8
MODULE = "slime_plugins.models.hf_attention"
#: In parts of the largest entry of the reference, in float64.
TOLERANCE = 1e-10


def mixing(seed: int) -> Callable[[Any, Sequence[int]], Any]:
    """Return a layer whose output at a token depends on all tokens of its sequence up to it.

    It takes [1, tokens, size] and the lengths of the sequences, and returns the shape that it took.
    """
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(HIDDEN, HIDDEN, generator=draw, dtype=torch.float64)

    def layer(states: Any, lengths: Sequence[int]) -> Any:
        parts = [
            torch.tanh(torch.cumsum(part @ weight, dim=1) / HIDDEN) for part in states.split(lengths, dim=1)
        ]
        return torch.cat(parts, dim=1)

    return layer


def slices(full: Any, lengths: Sequence[int], *, sequence_parallel: bool) -> Any:
    """Return this rank's rows of [tokens, ...]: its two chunks of each sequence, and of these its share."""
    rank, size = mpu.get_context_parallel_rank(), mpu.get_context_parallel_world_size()
    parts = []
    for sequence in full.split(list(lengths)):
        chunks = sequence.chunk(2 * size)
        parts += [chunks[rank], chunks[2 * size - 1 - rank]] if size > 1 else [sequence]
    mine = torch.cat(parts)
    if not sequence_parallel:
        return mine
    return mine.chunk(mpu.get_tensor_model_parallel_world_size())[mpu.get_tensor_model_parallel_rank()]


def gradient(
    layer: Callable[[Any, Sequence[int]], Any], lengths: Sequence[int], seed: int, *, sequence_parallel: bool
) -> dict[str, Any]:
    """Run the layer on this rank's tokens, and compare with the layer on all tokens without any ranks.

    Args:
        layer: Takes [1, tokens, size] and the lengths.
        lengths: Tokens of each sequence, multiples of all ranks that share one, times two.
        seed: Of what is drawn, the same on all ranks.
        sequence_parallel: Whether the tokens are split over the tensor parallel ranks too.

    Returns:
        The errors of output and gradient, in parts of the reference's largest entry.

    """
    import_slime("cp_utils")
    attention: Any = importlib.import_module(MODULE).HuggingfaceAttention

    class Layer(attention):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.args = Namespace(sequence_parallel=sequence_parallel)

        def hf_forward(self, hidden_states: Any, _packed: Any) -> Any:
            return layer(hidden_states, lengths)

    draw = torch.Generator().manual_seed(seed)
    whole, weights = torch.randn(2, sum(lengths), 1, HIDDEN, generator=draw, dtype=torch.float64)
    whole.requires_grad_()
    output = layer(whole.transpose(0, 1), lengths).transpose(0, 1)
    (wanted,) = torch.autograd.grad((output * weights).sum(), whole)

    def mine(full: Any) -> Any:
        return slices(full.detach(), lengths, sequence_parallel=sequence_parallel)

    given = mine(whole).requires_grad_()
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    found, _ = Layer()(given, None, packed_seq_params=Namespace(cu_seqlens_q=bounds))
    (grad,) = torch.autograd.grad((found * mine(weights)).sum(), given)
    return {"output": _error(found, mine(output)), "gradient": _error(grad, mine(wanted))}


def _error(found: Any, wanted: Any) -> float:
    if found.shape != wanted.shape:
        raise RuntimeError(f"{tuple(found.shape)} instead of {tuple(wanted.shape)}")
    return float((found - wanted).abs().max() / wanted.abs().max())
