"""`megatron.agreement` on real gloo ranks: it runs by itself when the model parallel state is initialised."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Shared with another folder of tests, which pytest need not have put on the path.
sys.path.append(str(Path(__file__).parents[1] / "workers"))
from rank_starter import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
WORLD = 3
#: The oldest and the newest release that the patch is for, and the one in between that is installed.
RELEASES = ["0.12.0", "0.16.1", "0.19.2"]

pytestmark = [pytest.mark.distributed, pytest.mark.real]


def run(folder: Path, release: Path, *words: str, **environ: str) -> list[Any]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")}
    clean |= {"PYTHONPATH": str(release), "OVERLAY_LOG": "debug", **environ}
    # Megatron compiles its activations, which is nothing to these ranks, and takes a compiler.
    clean["TORCHDYNAMO_DISABLE"] = "1"
    command = [sys.executable, "-W", "ignore", str(HERE / "rank_megatron.py"), *words]
    return run_ranks(command, [clean] * WORLD, folder)


@pytest.mark.nightly("the newest stands for the others", version=RELEASES[:-1])
@pytest.mark.parametrize("version", RELEASES)
def test_ranks_are_compared_when_megatron_is_initialised(
    tmp_path: Path, release: Callable[[str], Path], version: str
) -> None:
    found = run(tmp_path, release(f"megatron-core=={version}"), OVERLAY_PATCHES="megatron.*")
    assert [rank["alike"] for rank in found] == [""] * WORLD
    logs = [(tmp_path / f"rank{rank}.txt").read_text() for rank in range(WORLD)]
    first, *others = logs
    agreed = r"overlay: 3 ranks agree: [1-9]\d* applied, 0 refused, digest [0-9a-f]{12}"
    assert [line for line in first.splitlines() if re.fullmatch(agreed, line)], logs
    assert all(f"overlay: ranks 0-2 agree [rank={1 + n}," in log for n, log in enumerate(others)), logs
    assert all("ranks agree:" not in log for log in others), logs
    (said,) = {rank["different"] for rank in found}
    assert said.startswith("AgreementError: the ranks do not run the same:")
    has = r"revision 1, code [0-9a-f]{12}, for megatron-core .*"
    rows = rf"  megatron\.recompute\n    ranks 0,2  {has}\n    rank 1     absent(\n|$)"
    assert re.search(rows, said), said


@pytest.mark.xfail(strict=True, reason="upstream knows nothing of patches")
def test_megatron_alone_does_not_notice(tmp_path: Path, release: Callable[[str], Path]) -> None:
    settings = "megatron.recompute,-megatron.agreement"
    found = run(tmp_path, release("megatron-core==0.16.1"), "alone", OVERLAY_PATCHES=settings)
    assert [rank["alike"] for rank in found] == [""] * WORLD, "this is not what is expected to fail"
    assert all("rank 1" in rank["different"] for rank in found)
