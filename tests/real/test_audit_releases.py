"""The audit of real releases, as they come from the package index."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from listed_sources import Listed

import overlay
from overlay.compat.projects import SLIME
from overlay.compat.slime_releases import MODULES, RELEASES
from overlay.runtime.engine import Engine
from overlay.source.source import Tree
from records import _support_print

pytestmark = pytest.mark.real

RECORD = _support_print.recorded()


#: A patch that is there for one verl alone, and the Megatrons to which it applies beside that one, and not.
SERVING, SERVED = "megatron.dynamic-cp-names", "verl==0.8.0"
BESIDE = {"0.15.3": "not-needed", "0.16.0": "apply", "0.19.2": "apply"}


def verdicts(folder: Path | None = None) -> dict[str, str]:
    """Return the verdict on each patch for a project that is there."""
    found = Engine().plan_each(None if folder is None else str(folder)).verdicts
    return {one.patch: one.verdict for one in found if one.verdict != "not-installed"}


SLIMES = [name for name in RECORD if name.startswith("slime==v")]


@pytest.mark.nightly(
    "two releases stand for the others",
    name=tuple(name for name in SLIMES if name not in ("slime==v0.1.0", "slime==v0.3.1")),
)
@pytest.mark.parametrize("name", SLIMES)
def test_a_slime_without_setup_and_metadata_is_told_by_its_source(
    name: str, listed: Listed, tmp_path: Path
) -> None:
    # As Ray's `py_modules` brings it.
    folder = listed(name)
    for package in ("slime", "slime_plugins"):
        shutil.copytree(folder / package, tmp_path / package)
    assert verdicts(tmp_path) == RECORD[name]
    read_version = SLIME.read_version
    assert read_version is not None
    read, bare = Tree(str(folder)).read, Tree(str(tmp_path)).read
    assert read_version(bare) == read_version(read) is not None
    # Of a source that is none of a release nothing is said.
    for module in MODULES:
        path = tmp_path / module
        text = path.read_text()
        path.write_text(f"{text}\nx = 1\n")
        assert read_version(Tree(str(tmp_path)).read) is None
        path.write_text(f"{text}\n# a comment\n")
        assert read_version(Tree(str(tmp_path)).read) is not None


def test_every_release_of_slime_is_told_by_its_source() -> None:
    assert len(RELEASES) == len(SLIMES)


def test_what_is_installed_here() -> None:
    found = {one.patch: one for one in Engine().plan_each(None).verdicts}
    here = {**RECORD["megatron-core==0.16.1"], **RECORD["verl==0.8.0"]}
    # On Megatron alone it is not needed, as it serves verl alone.
    here["megatron.dynamic-cp-names"] = "apply"
    assert {patch: one.verdict for patch, one in found.items()} == {
        **dict.fromkeys(found, "not-installed"),
        **here,
    }
    assert found["megatron.recompute"].where() == "megatron-core 0.16.1, verl 0.8.0"
    assert found["verl.dynamic-cp-loss"].where() == "verl 0.8.0"


@pytest.mark.nightly("the last release stands for the first one", version=("0.16.0",))
@pytest.mark.parametrize("version", BESIDE)
def test_a_patch_for_one_verl_applies_beside_that_one_alone(
    version: str, listed: Listed, tmp_path: Path
) -> None:
    megatron = listed(f"megatron-core=={version}")

    def reason(verdict: str, folder: Path) -> str:
        (found,) = (one for one in overlay.plan(SERVING, str(folder)).verdicts if one.patch == SERVING)
        assert found.verdict == verdict
        return found.reason

    assert reason("not-needed", megatron) == "it serves verl alone, which is not installed"
    for verl in ("verl==0.7.1", "verl==0.9.1", SERVED):
        both = tmp_path / verl
        both.mkdir()
        (both / "megatron").symlink_to(megatron / "megatron")
        (both / "verl").symlink_to(listed(verl) / "verl")
        if verl != SERVED:
            needless = f"it serves verl alone, and verl {verl.partition('==')[2]} needs nothing: "
            assert reason("not-needed", both).startswith(needless)
        else:
            assert bool(reason(BESIDE[version], both)) == (BESIDE[version] == "not-needed")


def test_a_release_that_was_edited_by_hand_is_refused(tmp_path: Path, listed: Listed) -> None:
    """One word in a function that the patch only relies on."""
    shutil.copytree(listed("verl==0.8.0") / "verl", tmp_path / "verl")
    util = tmp_path / "verl/models/mcore/util.py"
    text, gathered = util.read_text(), "all_gather(output_list, output.detach(), group=cp_group)"
    assert gathered in text.partition("def postprocess_thd_engine")[2].partition("\ndef ")[0]
    util.write_text(text.replace(gathered, "all_gather(output_list, output, group=cp_group)"))
    verdict = next(
        v for v in overlay.plan("all", str(tmp_path)).verdicts if v.patch == "verl.dynamic-cp-loss"
    )
    assert verdict.verdict == "unknown-source"
    assert "verl.models.mcore.util:postprocess_thd_engine has an unknown digest" in verdict.reason


def test_the_audit_of_two_upstreams_is_two_screens_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    """What is installed here: verl 0.8.0 and Megatron 0.16.1."""
    from overlay.cli import main

    assert main(["audit"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert 24 <= len(shown) <= 80
    assert max(map(len, shown)) <= 80
