"""The audit of real releases, as they come from the package index."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import overlay
from overlay.compat.projects import SLIME
from overlay.compat.slime_releases import MODULES, RELEASES
from overlay.reading.source import InstalledTree
from records import support

if TYPE_CHECKING:
    from collections.abc import Callable

    Release = Callable[[str], Path]
    Audit = Callable[[str, Path], dict[str, dict[str, str]]]

pytestmark = pytest.mark.real

COMPAT = Path(__file__).resolve().parents[2] / "compat"
#: The support matrix, which `./scripts/matrix --write` writes: release to patch to what was decided.
RECORD: dict[str, dict[str, dict[str, str]]] = json.loads((COMPAT / "support.json").read_text())
AGAIN = "run `./scripts/matrix --checks --write`, and look at what changes"


def verdicts(release: str) -> dict[str, str]:
    return {patch: cell["verdict"] for patch, cell in RECORD[release].items()}


@pytest.mark.parametrize("name", RECORD)
def test_a_release_is_decided_on_as_recorded(name: str, listed: Release, audit: Audit) -> None:
    found = audit(name, listed(name))
    assert {patch: cell["verdict"] for patch, cell in found.items()} == verdicts(name), AGAIN


SLIMES = [name for name in RECORD if name.startswith("slime==v")]


@pytest.mark.parametrize("name", SLIMES)
def test_a_slime_without_setup_and_metadata_is_told_by_its_source(
    name: str, slime: Release, audit: Audit, tmp_path: Path
) -> None:
    # As Ray's `py_modules` brings it.
    folder = slime(name.partition("==")[2])
    for package in ("slime", "slime_plugins"):
        shutil.copytree(folder / package, tmp_path / package)
    if RECORD[name]:
        found = audit(name, tmp_path)
        assert {patch: cell["verdict"] for patch, cell in found.items()} == verdicts(name)
    read, bare = InstalledTree(str(folder)).read, InstalledTree(str(tmp_path)).read
    assert SLIME.read_version(bare) == SLIME.read_version(read) is not None
    # Of a source that is none of a release nothing is said.
    for module in MODULES:
        path = tmp_path / module
        text = path.read_text()
        path.write_text(f"{text}\nx = 1\n")
        assert SLIME.read_version(InstalledTree(str(tmp_path)).read) is None
        path.write_text(f"{text}\n# a comment\n")
        assert SLIME.read_version(InstalledTree(str(tmp_path)).read) is not None


def test_every_release_of_slime_is_told_by_its_source() -> None:
    assert len(RELEASES) == len(SLIMES)


def test_every_release_of_the_list_is_recorded() -> None:
    lines = [line.partition("#")[0].strip() for line in (COMPAT / "releases.txt").read_text().splitlines()]
    assert list(RECORD) == [line.partition(" = ")[0] for line in lines if line], AGAIN


def test_every_patch_was_checked_where_it_applies() -> None:
    unproven = {
        (release, patch)
        for release, row in RECORD.items()
        for patch, cell in row.items()
        if cell["verdict"] == "apply" and cell.get("check") != "passed"
    }
    assert unproven == set()


def test_what_is_installed_here() -> None:
    decided = support.decided()
    found = {patch: verdict.verdict for patch, verdict in decided.items()}
    here = {**verdicts("megatron-core==0.16.1"), **verdicts("verl==0.8.0")}
    assert found == {**dict.fromkeys(found, "not-installed"), **here}
    where = {patch: verdict.where() for patch, verdict in decided.items()}
    assert where["megatron.recompute"] == "megatron-core 0.16.1, verl 0.8.0"
    assert where["verl.dynamic-cp-loss"] == "verl 0.8.0"


def test_a_release_that_was_edited_by_hand_is_refused(tmp_path: Path, release: Release) -> None:
    """One word in a function that the patch only relies on."""
    import shutil

    shutil.copytree(release("verl==0.8.0") / "verl", tmp_path / "verl")
    util = tmp_path / "verl/models/mcore/util.py"
    text, gathered = util.read_text(), "all_gather(output_list, output.detach(), group=cp_group)"
    assert gathered in text.partition("def postprocess_thd_engine")[2].partition("\ndef ")[0]
    util.write_text(text.replace(gathered, "all_gather(output_list, output, group=cp_group)"))
    verdict = next(
        v for v in overlay.plan("all", str(tmp_path)).verdicts if v.patch == "verl.dynamic-cp-loss"
    )
    assert verdict.verdict == "unsupported"
    assert "verl.models.mcore.util:postprocess_thd_engine has an unknown digest" in verdict.reason


def test_the_audit_of_two_upstreams_is_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """What is installed here: verl 0.8.0 and Megatron 0.16.1."""
    from overlay.cli import main

    assert main(["audit"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert 24 <= len(shown) <= 40
    assert max(map(len, shown)) <= 80
    assert main(["audit", "--all"]) == 1
    assert len(capsys.readouterr().out.splitlines()) > len(shown)
