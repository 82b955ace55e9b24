"""The environment of a process in which Triton's interpreter runs kernels on the CPU.

Triton is taken from this environment if it is installed, as it is beside a CUDA build of torch, and from the
cache of releases if not: the package is large, and imports of the upstreams differ where it is there.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING

from sources import fetch_release

if TYPE_CHECKING:
    from pathlib import Path

#: What Megatron imports from 0.18 on.
TRITON = "triton==3.3.1"


def environment(scratch: Path, *, interpreted: bool = True) -> dict[str, str]:
    """Return the variables. `scratch` keeps what is compiled, and an assembler that may be executed.

    Raises:
        FetchError: Triton is neither installed nor to be had.
    """
    env = {
        name: text for name, text in os.environ.items() if not name.startswith(("OVERLAY_LOSS", "TRITON_"))
    }
    env |= {"OVERLAY_LOSS_KERNEL": "triton", "TRITON_CACHE_DIR": str(scratch / "kernels")}
    if interpreted:
        env["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton") is None:
        folder = fetch_release.fetch(TRITON)
        env["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [env.get("PYTHONPATH")])])
        # A wheel that is unpacked by hand loses the permission.
        assembler = scratch / "ptxas"
        shutil.copy(folder / "triton/backends/nvidia/bin/ptxas", assembler)
        assembler.chmod(0o755)
        env["TRITON_PTXAS_PATH"] = str(assembler)
    return env
