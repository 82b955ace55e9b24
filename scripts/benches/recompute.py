"""Measure what stays in memory after a training step through two recomputed MoE layers.

One process runs the installed Megatron with its own backward, with the installed verl's and with overlay's,
and counts the bytes of every storage that is still alive afterwards, parameters and their gradients aside.
The unit of the table is the input of one layer: stock Megatron keeps it and its gradient, for each layer.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from checks import UPSTREAMS

from benches import _program

CHECK = UPSTREAMS / "recompute_check.py"


def main(arguments: list[str]) -> int:
    """Print the table; exit status 1 if overlay keeps more than verl's patch, or changes a gradient."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args(arguments)
    verl = find_spec("verl")  # not the patch's own module: finding it would import what is above it
    words = []
    if verl is not None and verl.origin is not None:
        words.append(str(Path(verl.origin).parent / "models" / "mcore" / "patch.py"))
    found = _program.found(CHECK, *words, OVERLAY_PATCHES="none")
    modes = [name for name in ("stock", "verl", "overlay") if name in found]
    print(f"megatron-core {found['version']}, two MoE layers, retained: bytes / a layer's input")
    print(f"{'dispatcher':<12}{'backward':<10}{'retained':>9}{'of stock':>10}  gradients")
    kept: dict[tuple[str, str], float] = {}
    same = True
    for dispatcher in ("alltoall", "allgather"):
        stock = found["stock"][dispatcher]
        for name in modes:
            layers = found[name][dispatcher]
            kept[dispatcher, name] = layers["retained"]
            equal = layers["gradients"] == stock["gradients"]
            same = same and equal
            print(
                f"{dispatcher:<12}{name:<10}{layers['retained'] / layers['input']:>9.2f}"
                f"{layers['retained'] / stock['retained']:>10.2f}  {'identical' if equal else 'DIFFERENT'}"
            )
    rival = "verl" if "verl" in modes else "stock"
    less = all(kept[d, "overlay"] <= kept[d, rival] for d in ("alltoall", "allgather"))
    return 0 if same and less else 1
