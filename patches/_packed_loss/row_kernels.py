"""What goes over rows of logits: blocks of torch's operations, or with `OVERLAY_LOSS_KERNEL=triton` kernels.

Kernels are used for a device and dtype once they have agreed there with float64 on eight rows.
"""

from types import ModuleType
from typing import Any

from overlay import log
from overlay.model import settings
from overlay.patches._packed_loss import row_blocks
from overlay.patches._packed_loss.cuda_graph import capturing
from overlay.patches._packed_loss.row_blocks import Rows

#: Relative, of a sum or gradient in float32, and of a gradient that is rounded to less.
_TOLERANCE = 1e-5
_TOLERANCE_ROUNDED = 1e-2
#: What speaks against the kernels, by device and dtype; empty if nothing does.
_found: dict[tuple[Any, Any], str] = {}


def rows_of(flat: Any) -> ModuleType:
    """Return the module whose `local_terms` and `write_rows` go over the rows of logits [T, V]."""
    if settings.loss_kernel() != "triton":
        return row_blocks
    import torch

    # Columns that are not neighbours are nobody's logits.
    if type(flat) is not torch.Tensor or flat.stride(-1) != 1:
        return row_blocks
    key = (flat.device, flat.dtype)
    if key not in _found:
        # A copy to the host is no part of a CUDA graph.
        if capturing(flat.device):
            return row_blocks
        _found[key] = against(flat)
        if _found[key]:
            log.warning(f"OVERLAY_LOSS_KERNEL=triton: blocks instead, of {flat.dtype}: {_found[key]}")
        else:
            log.own(f"loss by Triton kernels on {flat.device}, {flat.dtype}: as float64 has it on 8 rows")
    if _found[key]:
        return row_blocks
    from overlay.patches._packed_loss import triton_rows

    return triton_rows


def against(flat: Any) -> str:
    """Return what speaks against the kernels on a device for a dtype; empty if nothing does."""
    import torch

    if flat.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"{flat.dtype} has no kernel"
    try:
        import triton

        # A stand-in for a Triton that is not installed is no file.
        if not getattr(triton, "__file__", None):
            return "Triton is not installed"
        from triton import knobs

        interpreted = knobs.runtime.interpret
    except ImportError:
        import os
        import sys

        if "triton" not in sys.modules:
            return "Triton is not installed"
        # Before 3.4 there were no knobs.
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not flat.is_cuda and not interpreted:
        return f"there is no kernel for {flat.device.type}"
    try:
        from overlay.patches._packed_loss import triton_rows

        with torch.no_grad(), torch.autocast(flat.device.type, enabled=False):
            return wrong(triton_rows, flat.device, flat.dtype)
    except Exception as error:  # noqa: BLE001 -- a compiler has many, and none of them may end a job
        return f"the kernels do not run: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def wrong(module: Any, device: Any, dtype: Any) -> str:
    """Return what a module computes wrongly of eight rows, with nothing of the process changed."""
    import torch

    made = torch.Generator("cpu").manual_seed(8)
    drawn: dict[str, Any] = {"generator": made, "device": "cpu"}
    # Two whole tiles and a part of one.
    wide = 2 * int(module.TILE) + 37
    logits = (torch.randn(9, wide, dtype=torch.float32, **drawn) * 3).to(dtype)
    logits[1, ::2] = -torch.inf
    logits[2] = -torch.inf
    logits[3, 5] += 40
    logits[4] *= 20
    logits[5, -1] = logits[5, 0] = 50
    logits[6, 7] = torch.nan
    logits[7] = torch.arange(wide, device="cpu") / wide
    exact = logits.double()
    for temperature, entropy in ((1.0, False), (0.7, True)):
        rows = Rows([(0, 3), (3, 8)], temperature=temperature, with_entropy=entropy)
        given = logits.to(device, copy=True)
        top, *sums = module.local_terms(given, 8, rows)
        best, *expected = row_blocks.local_terms(exact, 8, rows)
        # Of a row with nothing but -inf, and of one with NaN, only the maximum has a meaning.
        plain = [0, 1, 3, 4, 5, 7]
        same = torch.equal(top.cpu().double()[plain], best[plain])
        if not same or top[2] != -torch.inf or top[6] == top[6]:
            return "a maximum is wrong"
        names = ("sum", "entropy") if entropy else ("sum",)
        for name, found, value in zip(names, sums, expected, strict=False):
            off = (found.cpu()[plain] - value[plain]).abs() / value[plain].abs()
            if not bool((off < _TOLERANCE).all()):
                return f"the {name} of a row is off by {float(off.max()):.1e}"
        constant = torch.randn(8, dtype=torch.float64, **drawn)
        slope = torch.randn(8, dtype=torch.float64, **drawn) if entropy else None
        best[2] = 0
        wanted = exact.clone()
        row_blocks.write_rows(exact, wanted, best, constant, slope, rows)
        on = [None if part is None else part.to(device) for part in (best.to(dtype), constant, slope)]
        for out in (torch.full_like(given, torch.nan), given):
            module.write_rows(given, out, *on, rows)
            gradient = out.cpu().double()
            if bool(gradient[8].any()) or not bool(gradient[6].isnan().all()):
                return "rows that nobody asked for are not zero, or NaN is lost"
            norms = (gradient - wanted)[plain].norm(dim=1) / wanted[plain].norm(dim=1)
            most = _TOLERANCE if dtype == torch.float32 else _TOLERANCE_ROUNDED
            if not bool((norms < most).all()) or bool(gradient[2].any()):
                return f"the gradient of a row is off by {float(norms.max()):.1e}"
    return ""
