"""Going over rows of logits block by block: the sums of the forward, the rows of the gradient."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

#: A run of rows: first, and one past the last.
Span = tuple[int, int]

#: Stands for -inf, of which 0 * u would be NaN: exp() of it is zero in every dtype.
_LOWEST = -1e4

#: Bytes of logits that are worked on at a time: on a CPU what its caches hold, on a GPU what keeps it busy.
_BLOCK_BYTES = {"cpu": 1 << 20}
_BLOCK_BYTES_ELSEWHERE = 1 << 26
#: And no more than this part of all logits. On an H200 a block of fewer rows than some 200 leaves most of the
#: processors idle: twice this number took up to twice the time (docs/benchmarks.md).
_BLOCK_PART = 32


@dataclass(eq=False)
class Rows:
    """What is asked for: which rows of the logits, and how to go about them."""

    #: Runs of rows, in the order of the targets. No row may be in two of them.
    spans: Sequence[Span]
    _: KW_ONLY
    #: The process group that shares the vocabulary; `None` for none.
    group: Any = None
    temperature: float = 1.0
    #: The most rows that are worked on at a time; zero or less: as many as suit the device.
    block_rows: int = -1
    with_entropy: bool = False
    #: Whether to compute the gradient of the entropy unseen. Otherwise it is left out where it is zero, which
    #: takes a look at its R numbers, and a wait for the device.
    entropy_gradient: bool = True
    #: Whether the gradient overwrites the logits, if nothing else can see them.
    in_place: bool = False

    def gaps(self, count: int) -> Iterator[Span]:
        """Yield the runs of `count` rows that are in no span."""
        end = 0
        for start, stop in sorted(self.spans):
            yield end, start
            end = stop
        yield end, count


def numbers(spans: Iterable[Span], device: Any) -> Any:
    """Return the integers of runs, one run after the other, as int64 [R] on a device."""
    import torch

    # On the host, whatever the default device is: many launches take longer than one copy.
    runs = [torch.arange(start, stop, device="cpu") for start, stop in [(0, 0), *spans]]
    return torch.cat(runs).to(device)


def local_terms(flat: Any, count: int, rows: Rows) -> tuple[Any, Any, Any]:
    """Return maximum, rest and, if entropy is asked for, sum(exp(u) * u) of this rank's part of each row.

    Each is [count], in the dtype of the logits. The rest is sum(exp(u)) without the maximum's own term.
    """
    import torch

    top, rest, weighted = flat.new_empty(3, count)
    blocks = _blocks(flat, rows)
    buffers = _buffers(flat, blocks, 2 if rows.with_entropy else 1)
    for start, stop, at in blocks:
        part = slice(at, at + stop - start)
        top[part], where = flat[start:stop].max(-1)
        u, *more = (buffer[: stop - start] for buffer in buffers)
        _shift(flat[start:stop], top[part], u, rows)
        e = torch.exp(u.clamp_(min=_LOWEST), out=more[0]) if more else u.exp_()
        torch.sum(e.scatter_(1, where[:, None], 0), -1, out=rest[part])
        if more:
            torch.sum(e.mul_(u), -1, out=weighted[part])
    return top, rest, weighted


def write_rows(flat: Any, out: Any, top: Any, constant: Any, slope: Any, rows: Rows) -> None:
    """Write exp(u) * (constant + slope * u) into the R rows of `out` [T, V], and zero into all others.

    `out` may be `flat` [T, V], the logits. `top` [R], in their dtype, is the maximum of each row over the
    whole vocabulary. `constant` and `slope` [R] are float64; a slope of `None` is zero everywhere.
    """
    import torch

    blocks = _blocks(flat, rows)
    buffers = _buffers(flat, blocks, 0 if slope is None else 1)
    constant = constant.to(out.dtype)
    slope = None if slope is None else slope.to(out.dtype)
    for start, stop, at in blocks:
        part = slice(at, at + stop - start)
        u = out[start:stop]
        _shift(flat[start:stop], top[part], u, rows)
        if slope is None:
            u.exp_().mul_(constant[part, None])
        else:
            e = torch.exp(u.clamp_(min=_LOWEST), out=buffers[0][: stop - start])
            u.mul_(slope[part, None]).add_(constant[part, None]).mul_(e)
    for start, stop in rows.gaps(len(out)):
        out[start:stop].zero_()


def _shift(x: Any, top: Any, u: Any, rows: Rows) -> None:
    import torch

    # The maximum first: divided before, large logits would lose their differences.
    torch.sub(x, top[:, None], out=u)
    if rows.temperature != 1:
        u.mul_(1 / rows.temperature)


def _buffers(flat: Any, blocks: list[tuple[int, int, int]], count: int) -> list[Any]:
    height = max((stop - start for start, stop, _ in blocks), default=0)
    return [flat.new_empty(height, flat.size(1)) for _ in range(count)]


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
