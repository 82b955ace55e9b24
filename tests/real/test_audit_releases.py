"""The audit of real releases, as they come from the package index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import overlay

if TYPE_CHECKING:
    from collections.abc import Callable

    Release = Callable[[str], Path]

pytestmark = pytest.mark.real

COMPAT = Path(__file__).resolve().parents[2] / "compat"
#: The support matrix, which `scripts/matrix.py --write` writes: release to patch to what was decided.
RECORD: dict[str, dict[str, dict[str, str]]] = json.loads((COMPAT / "support.json").read_text())
AGAIN = "run `python scripts/matrix.py --checks --write`, and look at what changes"


def verdicts(release: str) -> dict[str, str]:
    return {patch: cell["verdict"] for patch, cell in RECORD[release].items()}


def audit(folder: Path) -> dict[str, str]:
    """Return the verdicts but for those on patches of other projects, which are `not-installed`."""
    found = overlay.plan("all", str(folder)).verdicts
    return {verdict.patch: verdict.verdict for verdict in found if verdict.verdict != "not-installed"}


@pytest.mark.parametrize("name", RECORD)
def test_a_release_is_decided_on_as_recorded(name: str, release: Release, slime: Release) -> None:
    project, _, revision = name.partition("==")
    folder = slime(revision) if project == "slime" else release(name)
    assert audit(folder) == verdicts(name), AGAIN


def test_every_release_of_the_list_is_recorded() -> None:
    lines = [line.partition("#")[0].strip() for line in (COMPAT / "releases.txt").read_text().splitlines()]
    assert list(RECORD) == [line for line in lines if line], AGAIN


def test_every_patch_was_checked_where_it_applies() -> None:
    applied = [cell for row in RECORD.values() for cell in row.values() if cell["verdict"] == "apply"]
    assert {cell.get("check") for cell in applied} == {"passed"}


def test_what_is_installed_here() -> None:
    plan = overlay.plan("all")
    found = {verdict.patch: verdict.verdict for verdict in plan.verdicts}
    here = {**verdicts("megatron-core==0.16.1"), **verdicts("verl==0.8.0")}
    assert found == {**dict.fromkeys(found, "not-installed"), **here}
    where = {verdict.patch: verdict.where() for verdict in plan.verdicts}
    assert where["megatron.recompute"] == "megatron-core 0.16.1, verl 0.8.0"
    assert where["verl.dynamic-cp-loss"] == "verl 0.8.0"


def test_a_release_that_was_edited_by_hand_is_refused(tmp_path: Path, release: Release) -> None:
    """One operator in a function that the patch only relies on."""
    import shutil

    shutil.copytree(release("verl==0.8.0") / "verl", tmp_path / "verl")
    losses = tmp_path / "verl/workers/utils/losses.py"
    text = losses.read_text()
    assert text.count("/ batch_num_tokens * dp_size") == 2
    losses.write_text(text.replace("/ batch_num_tokens * dp_size", "/ batch_num_tokens"))
    verdict = next(
        v for v in overlay.plan("all", str(tmp_path)).verdicts if v.patch == "verl.dynamic-cp-loss"
    )
    assert verdict.verdict == "unsupported"
    assert "verl.workers.utils.losses:sft_loss has an unknown digest" in verdict.reason
