"""Loss and gradient of each tensor parallel rank are those of one process in float64, smoothed or not."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.forked import wrong_on_ranks

#: Tensor parallel ranks, tokens, sequences, words.
RANKS, TOKENS, SEQUENCES, VOCABULARY = 2, 7, 3, 22
#: Words of a rank, so many that all else is small.
WIDE = 2048


def wrong(seed: str) -> str:
    """Return what a rank finds wrong, empty if none finds anything."""
    return wrong_on_ranks(partial(_rank, seed), "megatron.core.tensor_parallel", ranks=RANKS)


def _rank(seed: str) -> Iterator[str]:
    """Yield what is wrong on one of the ranks, which all draw the same."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    torch.manual_seed(int(seed) % 2**31)
    part = VOCABULARY // RANKS
    own = slice(dist.get_rank() * part, (dist.get_rank() + 1) * part)
    for dtype in (torch.float32, torch.bfloat16):
        for smoothing in (0.0, 0.1, 0.7):
            drawn = (3 * torch.randn(TOKENS, SEQUENCES, VOCABULARY)).to(dtype)
            target = torch.randint(VOCABULARY, (TOKENS, SEQUENCES))
            weights = torch.randn(TOKENS, SEQUENCES, dtype=torch.float64)
            exact = drawn.double().requires_grad_()
            # Of torch, which gives the target a part as well.
            spread = smoothing * VOCABULARY / (VOCABULARY - 1)
            wanted = torch.nn.functional.cross_entropy(
                exact.flatten(0, 1), target.flatten(), reduction="none", label_smoothing=spread
            ).view_as(target)
            (wanted_by,) = torch.autograd.grad((wanted * weights).sum(), exact)
            logits = drawn[..., own].clone().requires_grad_()
            loss = vocab_parallel_cross_entropy(logits, target, smoothing)
            (by,) = torch.autograd.grad((loss.double() * weights).sum(), logits)
            step = torch.finfo(dtype).eps
            if not torch.allclose(loss.double(), wanted, rtol=1e-5, atol=1e-5):
                yield f"with smoothing {smoothing} the loss of {dtype} is off"
            elif not torch.allclose(by.double(), wanted_by[..., own], rtol=step, atol=1e-5):
                yield f"with smoothing {smoothing} the gradient of {dtype} is off"
    yield from _memory(own=torch.randn(TOKENS, SEQUENCES, WIDE))


def _memory(own: Any) -> Iterator[str]:
    """Yield how much a step needs beside float32 logits, if it is more than about as much again."""
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    from overlay.compat.live_bytes import LiveBytes

    own.requires_grad_()
    with LiveBytes(own) as live:
        loss = vocab_parallel_cross_entropy(own, own.new_zeros(own.shape[:-1]).long(), 0.1).sum()
        loss.backward()
    if live.peak > 1.5 * own.nbytes:
        yield f"with float32 logits of {own.nbytes} bytes loss and gradient need {live.peak} more"


CONTRACT = parts.contract("megatron.label-smoothing-over-tp", wrong)
