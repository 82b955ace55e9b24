"""`overlay prove` on releases of verl and slime, each beside a release of Megatron."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real

MEGATRON = "megatron-core==0.16.1"


def prove(*arguments: str, path: list[Path], **environ: str) -> dict[str, Any]:
    """Return what the command says with folders first on the path."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OVERLAY")}
    done = subprocess.run(
        [sys.executable, "-m", "overlay", "prove", *arguments, "--json"],
        env={**clean, "PYTHONPATH": os.pathsep.join(map(str, path)), **environ},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return {**json.loads(done.stdout), "status": done.returncode}


def test_contracts_hold_on_verl_and_slime(
    release: Callable[[str], Path], slime: Callable[[str], Path]
) -> None:
    path = [slime("v0.2.4"), release("verl==0.8.0"), release(MEGATRON)]
    found = prove("verl.seeded-validation", "slime.eps-clip-c", "slime.capped-partitions", path=path)
    said = {row["patch"]: (row["verdict"], row["why"]) for row in found["rows"]}
    assert {verdict for verdict, _ in said.values()} == {"proven"}, (found["seed"], said)
    assert all(row["alone"]["outcome"] == "wrong" for row in found["rows"])
    assert found["status"] == 0
