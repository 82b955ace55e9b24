"""Log-probability and entropy of rows of vocabulary-parallel logits, with O(rows) state.

For one row of logits x, of which each rank of the tensor parallel group has V entries, M is the largest entry
of the whole row and u = (x - M) / temperature. The maximum's own term of the sum of exponentials is exactly 1
and is left out of what is summed, because the logarithm of a sum that is 1 but for a rest is that rest:

    rest = sum(exp(u)) - 1      log_prob = u[target] - log1p(rest)
    mean = -sum(p * u) >= 0     entropy  = log1p(rest) + mean

No term of these cancels another, so a row that has all of its probability on one entry is as accurate as any.
Subtracting M before the temperature is applied keeps large logits accurate too. The forward keeps M, the rest,
the mean and the target of each row; the backward computes u again, block by block, in the rows of the gradient:

    d log_prob / dx = (1[target] - p) / temperature      d entropy / dx = -p * (u + mean) / temperature
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    #: A run of rows: first, and one past the last.
    Span = tuple[int, int]

#: Below this exp() is zero in every dtype. It takes the place of -inf, of which 0 * u would be NaN.
_LOWEST = -1e4

#: Bytes of logits that are worked on at a time: on a CPU what its caches hold, on a GPU what keeps it busy.
_BLOCK_BYTES = {"cpu": 1 << 20}
_BLOCK_BYTES_ELSEWHERE = 1 << 26

#: And no more than this part of all logits, so that what is worked on hardly counts beside them.
_BLOCK_PART = 64

_HELD = "the logits cannot be overwritten by their gradient: something else holds them, or it cannot be told"


class Rows:
    """What is asked for: which rows of the logits, and how to go about them."""

    def __init__(
        self,
        spans: Sequence[Span],
        *,
        group: Any = None,
        temperature: float = 1.0,
        block_rows: int = -1,
        with_entropy: bool = False,
        entropy_gradient: bool = True,
        in_place: bool = False,
    ) -> None:
        #: Runs of rows, in the order of the targets. No row may be in two of them.
        self.spans = spans
        #: The process group that shares the vocabulary; `None` for none.
        self.group = group
        self.temperature = temperature
        #: At most so many rows are worked on at a time; zero or less is for as many as suits the device.
        self.block_rows = block_rows
        self.with_entropy = with_entropy
        #: Whether the entropy is part of the graph.
        self.entropy_gradient = entropy_gradient
        #: Whether the gradient is written over the logits, if nothing else can still see them.
        self.in_place = in_place


def make_log_prob_entropy() -> Callable[[Any, Any, Rows], tuple[Any, Any]]:
    """Build `log_prob_entropy(logits, targets, rows)`.

    It takes logits [..., V] of this rank's part of the vocabulary, of which all dimensions but the last are
    the rows that spans count, and for R rows their targets [R], as indices of the whole vocabulary. It returns
    their log-probabilities [R] and entropies [R] (without entropy, [0]) in the dtype of the logits. All ranks of
    the group must call it with the same rows. The backward has no collective, and of full size it makes the
    gradient alone.
    """
    import warnings

    import torch
    from torch.autograd.function import once_differentiable

    from overlay.patches.slime._sole_holder import make_sole_holder

    sole_holder = make_sole_holder()

    class LogProbEntropy(torch.autograd.Function):
        """The function as autograd sees it."""

        @staticmethod
        def forward(ctx: Any, logits: Any, targets: Any, rows: Rows) -> tuple[Any, Any]:
            ctx.set_materialize_grads(False)
            ctx.rows = rows
            flat = logits.view(-1, logits.size(-1))
            line = _lines(rows.spans, logits.device)
            rank, size = _place(rows.group)
            local = targets.to(logits.device) - rank * flat.size(1)
            here = (local >= 0) & (local < flat.size(1))
            column = torch.where(here, local, 0)
            top, rest, mean, at = _reduced(flat, line, column, here, rows, size)
            log_sum = torch.log1p(rest)
            log_prob = at - log_sum
            entropy = (log_sum + mean if rows.with_entropy else log_sum[:0]).to(logits.dtype)
            if not (rows.with_entropy and rows.entropy_gradient):
                ctx.mark_non_differentiable(entropy)
            ctx.save_for_backward(logits, top, rest, mean, at, log_prob, line, column, here)
            return log_prob.to(logits.dtype), entropy

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, of_log_prob: Any, of_entropy: Any) -> tuple[Any, None, None]:
            logits, top, rest, mean, at, log_prob, line, column, here = ctx.saved_tensors
            rows: Rows = ctx.rows
            if rows.in_place and sole_holder(logits):
                grad = logits.detach()
            else:
                if rows.in_place:
                    warnings.warn(_HELD, stacklevel=2)
                grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
            flat, out = logits.view(-1, logits.size(-1)), grad.view(-1, grad.size(-1))
            for start, stop in _gaps(rows.spans, len(out)):
                out[start:stop].zero_()
            direct = torch.zeros_like(rest) if of_log_prob is None else of_log_prob.double()
            scale = -1 / (rows.temperature * (1 + rest))
            if of_entropy is None:
                _write(flat, out, top, (direct * scale).to(top.dtype), None, rows)
                exact = -torch.expm1(log_prob) * direct
            else:
                through = of_entropy.double()
                constant = ((direct + through * mean) * scale).to(top.dtype)
                _write(flat, out, top, constant, (through * scale).to(top.dtype), rows)
                p = log_prob.exp()
                exact = -torch.expm1(log_prob) * direct
                # Where p is zero, u is -inf or as good as that.
                exact = exact - torch.where(p == 0, p, p * (at + mean)) * through
            # 1 - p of the target itself, which in the dtype of the logits would cancel.
            exact = (exact / rows.temperature).to(out.dtype)
            out[line, column] = torch.where(here, exact, out[line, column])
            return grad, None, None

    def _reduced(flat: Any, line: Any, column: Any, here: Any, rows: Rows, size: int) -> tuple[Any, ...]:
        """Return M [R] in the dtype of the logits, and rest, mean and u of the target [R] in float64."""
        top, rest, weighted = _local(flat, len(line), rows)
        own = top
        if size > 1 and len(line):
            top = top.clone()
            torch.distributed.all_reduce(top, op=torch.distributed.ReduceOp.MAX, group=rows.group)
        # A rank whose entries are all -inf has no part in the sum.
        some = own != -torch.inf
        below = torch.where(some, (own.double() - top.double()) / rows.temperature, 0)
        share = torch.where(some, below.exp(), 0)
        rest = torch.where(some, rest.double(), 0)
        terms = [rest * share, share, torch.where(here, flat[line, column].double() - top.double(), 0)]
        if rows.with_entropy:
            # Where the share is zero, what it is of may be infinitely far below.
            weighted = torch.where(share == 0, 0, weighted.double() + (1 + rest) * below)
            terms.append(weighted * share)
        if size > 1 and len(line):
            packed = torch.stack(terms)
            torch.distributed.all_reduce(packed, group=rows.group)
            terms = list(packed)
        # The last is zero, or NaN for a row that has +inf or nothing but -inf: it has no probabilities.
        rest = terms[0] + (terms[1] - 1) + (top - top).double()
        mean = -terms[3] / (1 + rest) if rows.with_entropy else torch.zeros_like(rest)
        return top, rest, mean, terms[2] / rows.temperature

    def _local(flat: Any, count: int, rows: Rows) -> tuple[Any, Any, Any]:
        """Return maximum, rest and, if entropy is asked for, sum(exp(u) * u) of this rank's part of each row."""
        top, rest, weighted = flat.new_empty(3, count)
        blocks = _blocks(flat, rows)
        buffers = _buffers(flat, blocks, 2 if rows.with_entropy else 1)
        for start, stop, at in blocks:
            part = slice(at, at + stop - start)
            best, where = flat[start:stop].max(-1)
            top[part] = best
            u, *more = (buffer[: stop - start] for buffer in buffers)
            _shifted(flat[start:stop], best, u, rows)
            if more:
                e = torch.exp(u.clamp_(min=_LOWEST), out=more[0])
            else:
                e = u.exp_()
            torch.sum(e.scatter_(1, where[:, None], 0), -1, out=rest[part])
            if more:
                torch.sum(e.mul_(u), -1, out=weighted[part])
        return top, rest, weighted

    def _write(flat: Any, out: Any, top: Any, constant: Any, slope: Any, rows: Rows) -> None:
        """Write exp(u) * (constant + slope * u) into the rows of `out`, which may be `flat` itself."""
        blocks = _blocks(flat, rows)
        buffers = _buffers(flat, blocks, 0 if slope is None else 1)
        for start, stop, at in blocks:
            part = slice(at, at + stop - start)
            u = out[start:stop]
            _shifted(flat[start:stop], top[part], u, rows)
            if slope is None:
                u.exp_().mul_(constant[part, None])
            else:
                e = torch.exp(u.clamp_(min=_LOWEST), out=buffers[0][: stop - start])
                u.mul_(slope[part, None]).add_(constant[part, None]).mul_(e)

    def _shifted(x: Any, top: Any, u: Any, rows: Rows) -> None:
        torch.sub(x, top[:, None], out=u)
        if rows.temperature != 1:
            u.mul_(1 / rows.temperature)

    def _buffers(flat: Any, blocks: list[tuple[int, int, int]], count: int) -> list[Any]:
        height = max((stop - start for start, stop, _ in blocks), default=0)
        return [flat.new_empty(height, flat.size(1)) for _ in range(count)]

    def _lines(spans: Sequence[Span], device: Any) -> Any:
        lines = [torch.arange(start, stop) for start, stop in spans]
        return torch.cat(lines or [torch.arange(0)]).to(device)

    def _place(group: Any) -> tuple[int, int]:
        return (0, 1) if group is None else (group.rank(), group.size())

    def log_prob_entropy(logits: Any, targets: Any, rows: Rows) -> tuple[Any, Any]:
        log_prob, entropy = LogProbEntropy.apply(logits, targets, rows)
        return log_prob, entropy

    return log_prob_entropy


def _blocks(flat: Any, rows: Rows) -> list[tuple[int, int, int]]:
    """Cut spans into blocks: first row, one past the last, and the place of the first among all rows."""
    size = flat.size(1) * flat.element_size()
    budget = min(_BLOCK_BYTES.get(flat.device.type, _BLOCK_BYTES_ELSEWHERE), len(flat) * size // _BLOCK_PART)
    height = max(1, budget // max(1, size))
    if rows.block_rows > 0:
        height = min(height, rows.block_rows)
    blocks, at = [], 0
    for start, stop in rows.spans:
        for first in range(start, stop, height):
            last = min(first + height, stop)
            blocks.append((first, last, at))
            at += last - first
    return blocks


def _gaps(spans: Sequence[Span], count: int) -> Iterator[Span]:
    """Yield the runs of rows that are in no span."""
    end = 0
    for start, stop in sorted(spans):
        yield end, start
        end = stop
    yield end, count
