"""Started on every rank of the worksite: compares ranks that are alike, that differ, and that are silent.

Rank 1 has another upstream, and rank 2 runs no overlay code at all.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch.distributed as dist

RANK = int(os.environ["RANK"])
SHORT = 3.0


def tried(group: Any = None, timeout: float | None = None) -> dict[str, Any]:
    """Compare the ranks of a group, and return what came of it."""
    import overlay

    try:
        overlay.agree(group, timeout)
    except overlay.AgreementError as error:
        return {"said": str(error)}
    return {"said": ""}


def enable(*patches: str) -> None:
    """Enable with other settings than before."""
    import overlay

    overlay.disable()
    overlay.enable(patches or None)


def main() -> dict[str, Any]:
    """Compare some ranks, and those that are alike again after one of them has changed its mind."""
    import fakeup.core

    found: dict[str, Any] = {"value": fakeup.core.scale(1), "overlay": "overlay" in sys.modules}
    alike, armed, led_by_silent = dist.new_group([0, 3]), dist.new_group([0, 1, 3]), dist.new_group([2, 3])
    if not found["overlay"]:
        return found
    import overlay

    found["armed"] = tried(armed)
    found["all"] = tried(None, SHORT)
    if RANK == 1:
        return found
    found["led by a silent rank"] = tried(led_by_silent, SHORT) if RANK == 3 else {}
    for name in ("alike", "changed", "changed back", "disabled"):
        if name == "changed" and RANK == 3:
            enable("megatron.recompute")
        elif name == "changed back" and RANK == 3:
            enable()
        elif name == "disabled" and RANK == 0:
            overlay.disable()
        dist.barrier(alike)
        found[name] = tried(alike)
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo")
    result = main()
    dist.barrier()
    sys.stdout.write("\n" + json.dumps(result) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()
