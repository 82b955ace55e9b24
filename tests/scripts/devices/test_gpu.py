"""`./scripts/gpu` where there is no GPU: the same program at small sizes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import python
from devices import _loss, _loss_rivals, gpu

torch: Any = pytest.importorskip("torch")

INSIDE = Path(__file__).resolve().parents[3] / "scripts" / "environment" / "inside.py"


def start(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python("-W", "ignore", str(INSIDE), "devices.gpu", *words, seconds=300, **env)


def test_the_program_runs_on_the_stand_in() -> None:
    done = start("--stand-in", "--seed", "1")
    assert done.returncode == 0, (done.stdout, done.stderr)
    first, *lines = done.stdout.splitlines()
    assert first.startswith("no GPU: the CPU, at small sizes; torch ")
    assert {line[:11].strip() for line in lines} == {"loss", "two ranks"}
    assert not [line for line in lines if "WRONG" in line or "Error" in line]
    for name, peak in (("overlay", "peak  1.0"), ("the same in place", "peak  0.0")):
        assert sum(f"  {name}  " in line and peak in line for line in lines) == len(_loss.SMALL)


def test_an_error_in_the_last_rows_is_seen() -> None:
    draw = torch.Generator().manual_seed(1)
    leaf = torch.randn(300, 7, generator=draw).requires_grad_()
    targets = torch.randint(7, (300,), generator=draw)
    found = _loss_rivals.plain(leaf, targets)
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    assert _loss.wrong(leaf, targets, found, gradient) < 1e-6
    for row in (0, 299):
        other = gradient.clone()
        other[row] = 0
        assert _loss.wrong(leaf, targets, found, other) > 1e-2


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use the GPU here")
def test_a_gpu_that_torch_cannot_use_is_told_and_nothing_is_installed(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    done = start(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Let pip find a CUDA build" in done.stderr


def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, right in (("error 0.0e+00", True), ("WRONG: off by 1", False)):
        monkeypatch.setattr(gpu, "_rows", lambda *_, found=found: iter([("loss", "one", found)]))
        assert gpu._print("cpu", 1) is right
