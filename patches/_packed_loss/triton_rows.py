"""Triton kernels that go over rows of logits: one read forward, one read and one write backward.

They take the place of `row_blocks.local_terms` and `row_blocks.write_rows`, which are their reference.
Importing this needs Triton; `row_kernels` decides whether it is imported. Never run on a GPU so far: see
docs/gpu.md.

What was found before a larger logit came along is taken to the new maximum M', d being
(M - M') / temperature:

    rest' = exp(d) * (rest + 1)      weighted' = exp(d) * (weighted + d * (rest + 1))

All of that is float64, a few times per row. What one tile adds is summed in float32, by a tree of 12 levels.
Nothing that is added has another sign than the rest, so nothing cancels.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import triton
import triton.language as tl

from overlay.patches._packed_loss.row_blocks import Rows

# Triton evaluates the annotations of a kernel, and has no `Any`.

#: Columns at a time.
TILE = 4096
_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _exp(u: tl.tensor) -> tl.tensor:
    """Return exp(u) of float32 u <= 0, within 3e-7 of it, and 0 below 2 ** -126.

    exp2 of `u * log2(e)`, which a GPU has, is off by as much as that product is rounded: 7e-6 at u = -80. So
    the whole part of the product is taken off exactly: ln 2 in two parts, of which the first has 9 bits.
    """
    below = u < -100.0  # noqa: PLR2004 -- exp() of it is no number that float32 has
    u = tl.where(below, -100.0, u)
    whole = tl.floor(u * 1.4426950408889634 + 0.5)
    rest = (u - whole * 0.693359375) + whole * 2.12194440e-4
    # No number is left at NaN, whose bits are not to be computed with; the product below is NaN all the same.
    power = tl.where(whole == whole, whole, 0.0).to(tl.int32) + 127  # noqa: PLR0124 -- NaN
    bits = tl.where(below | (power < 1), 0, power) << 23
    return tl.exp2(rest * 1.4426950408889634) * bits.to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _terms(
    logits: tl.tensor,
    stride: tl.tensor,
    lines: tl.tensor,
    top: tl.tensor,
    rest: tl.tensor,
    weighted: tl.tensor,
    width: tl.tensor,
    inverse: tl.tensor,
    WEIGHTED: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Reduce one row: maximum, rest and sum(exp(u) * u), the latter two in float64."""
    row = tl.program_id(0)
    line = tl.load(lines + row).to(tl.int64)
    offsets = tl.arange(0, TILE)
    best = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float64)
    moment = tl.full((), 0.0, tl.float64)
    scale = tl.load(inverse)
    for first in range(0, width, TILE):
        at = first + offsets
        inside = at < width
        x = tl.load(logits + line * stride + at, mask=inside, other=float("-inf")).to(tl.float32)
        # NaN has no place in the order, which differs between devices: the sum has it.
        ordered = tl.where(x == x, x, float("-inf"))  # noqa: PLR0124 -- NaN
        highest = tl.max(ordered, 0)
        counted = inside
        if highest > best:
            # The maximum's own term is left out, once.
            place = tl.min(tl.where(ordered == highest, at, width), 0)
            counted = inside & (at != place)
            if best > float("-inf"):
                down = (best.to(tl.float64) - highest.to(tl.float64)) * scale
                factor = tl.exp(down)
                moment = tl.where(factor == 0, 0.0, factor * (moment + down * (total + 1)))
                total = factor * (total + 1)
            best = highest
        # Where nothing but -inf was seen, -inf is not to be subtracted from itself.
        u = (x - tl.where(best == float("-inf"), 0.0, best)) * scale.to(tl.float32)
        e = tl.where(counted, _exp(u), 0.0)
        total += tl.sum(e, 0).to(tl.float64)
        if WEIGHTED:
            moment += tl.sum(tl.where(e == 0, 0.0, e * u), 0).to(tl.float64)
    # A rank with NaN must not look like one with nothing but -inf, which has no part in the sum.
    lost = (total != total) & (best < float("inf"))  # noqa: PLR0124 -- NaN
    tl.store(top + row, tl.where(lost, float("nan"), best))
    tl.store(rest + row, total)
    if WEIGHTED:
        tl.store(weighted + row, moment)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _gradient(
    logits: tl.tensor,
    stride: tl.tensor,
    out: tl.tensor,
    pitch: tl.tensor,
    lines: tl.tensor,
    top: tl.tensor,
    constant: tl.tensor,
    slope: tl.tensor,
    width: tl.tensor,
    inverse: tl.tensor,
    SLOPE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Write one tile of exp(u) * (constant + slope * u). `out` may be `logits`."""
    row = tl.program_id(0)
    line = tl.load(lines + row).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = at < width
    x = tl.load(logits + line * stride + at, mask=inside, other=float("-inf")).to(tl.float32)
    u = (x - tl.load(top + row).to(tl.float32)) * tl.load(inverse).to(tl.float32)
    e = _exp(u)
    factor = tl.load(constant + row)
    if SLOPE:
        # Where e is zero u may be -inf, of which 0 * u would be NaN.
        factor += tl.load(slope + row) * tl.where(e == 0, 0.0, u)
    tl.store(out + line * pitch + at, (e * factor).to(out.dtype.element_ty), mask=inside)


def local_terms(flat: Any, count: int, rows: Rows) -> tuple[Any, Any, Any]:
    """Return what `row_blocks.local_terms` does: the maximum in the logits' dtype, the sums in float64."""
    top = flat.new_empty(count)
    rest, weighted = flat.new_zeros((2, count), dtype=torch.float64)
    if count:
        with _device(flat):
            _terms[count,](
                flat, flat.stride(0), rows.lines(flat.device), top, rest, weighted,
                flat.size(1), _inverse(rows, flat),
                WEIGHTED=rows.with_entropy, TILE=TILE, num_warps=_WARPS,
            )  # fmt: skip
    return top, rest, weighted


def write_rows(flat: Any, out: Any, top: Any, constant: Any, slope: Any, rows: Rows) -> None:
    """Do what `row_blocks.write_rows` does, with constant and slope [R] in float64."""
    if len(top):
        with _device(flat):
            _gradient[len(top), triton.cdiv(flat.size(1), TILE)](
                flat, flat.stride(0), out, out.stride(0), rows.lines(flat.device), top,
                constant.float(), (constant if slope is None else slope).float(),
                flat.size(1), _inverse(rows, flat),
                SLOPE=slope is not None, TILE=TILE, num_warps=_WARPS,
            )  # fmt: skip
    for start, stop in rows.gaps(len(out)):
        out[start:stop].zero_()


def _inverse(rows: Rows, flat: Any) -> Any:
    """Return 1 / temperature [1] in float64: a number that is passed to a kernel is cut to float32."""
    return torch.full((1,), 1 / rows.temperature, dtype=torch.float64, device=flat.device)


def _device(tensor: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a tensor's device: kernels are launched on the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()
