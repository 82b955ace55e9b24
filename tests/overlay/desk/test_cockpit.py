"""The cockpit: what bare `overlay` says of an installation, and that it fits a screen."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import overlay
from fake_upstream import PROJECT, Upstream, triple

from overlay.defect import Defect
from overlay.desk import screen as screens
from overlay.launch import doctor
from overlay.patch import Patch
from overlay.runtime.engine import Engine
from overlay.source.registry import environment, load_patches, tables
from overlay.verdict import Verdict

# -- what is looked at -----------------------------------------------------------------------------

Look = Callable[..., str]


@pytest.fixture
def look(
    upstream: Upstream,
    engines: Callable[..., Engine],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Look:
    """Look at the fake upstream, while the checks find what a test says: they are tried elsewhere."""
    monkeypatch.chdir(tmp_path)

    def find(*patches: Patch, code: int = 0, **wrong: str) -> str:
        checks = tuple(
            doctor.Check(name=name, answer="no", found=text, todo="do") for name, text in wrong.items()
        )
        found = doctor.Checkup(
            package="", python="", armed=not checks, checks=checks, projects=(), todo=(),
        )  # fmt: skip
        monkeypatch.setattr(screens, "examine", lambda engine: found)
        assert screens.show_screen(engines(*(patches or [upstream.patch()]))) == code
        return capsys.readouterr().out

    return find


def test_it_says_what_is_there_what_applies_and_what_is_left(
    upstream: Upstream, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = upstream.patch().replace(changes=("memory", "numbers"))
    named = upstream.patch({"fakeup.core:Engine.fixed": triple}, name="fakeup.reading").replace(opt_in=True)
    known = {
        f"{mends.id}-is-wrong": Defect(
            id=f"{mends.id}-is-wrong", project=PROJECT, summary="", harm="crash", patch=mends.id
        )
        for mends in (patch, named)
    }
    monkeypatch.setattr("overlay.desk.audit.audit.load_defects", lambda patches: known)
    text = look(patch, named)
    assert text.splitlines()[2].split()[:2] == ["fakeup", "1.2.0"]
    assert str(upstream.root) in "".join(text.split())
    assert "numbers  fakeup: scale\n" in text
    said = "2 known defects here: 1 patched, 1 not (fakeup.reading-is-wrong; `overlay audit`)"
    assert said in " ".join(text.split())
    assert "active: yes, in every Python process that starts here and now" in text
    assert text.endswith("next: overlay lock\n")
    # Nothing of an upstream was imported for that.
    assert not [name for name in sys.modules if name.partition(".")[0] == "fakeup"]


def test_it_says_which_stack_above_megatron_the_patches_are_for(upstream: Upstream, look: Look) -> None:
    assert "Megatron" not in look()
    for name in ("megatron/bridge", "nemo_rl", "nemo_rl/models", "nemo_rl/models/megatron"):
        (upstream.root / name).mkdir(parents=True)
        (upstream.root / name / "__init__.py").write_text("raise RuntimeError('imported')")
    (upstream.root / "nemo_rl-0.6.0.dist-info").mkdir()
    (upstream.root / "nemo_rl-0.6.0.dist-info/METADATA").write_text("Name: nemo-rl\nVersion: 0.6.0\n")
    # The outermost, which brings the other.
    assert "NeMo-RL 0.6.0 on its Megatron:\n1 patch applies" in look()


NOT_SET = {"OVERLAY": "is not set"}
RUN = "torchrun --nproc-per-node 8 train.py"


@pytest.mark.parametrize(
    ("wrong", "how", "command"),
    [
        ({}, "", "overlay lock"),
        (NOT_SET, "", f"overlay run {RUN}"),
        (NOT_SET, "locked", f"overlay run --pin overlay.lock {RUN}"),
        ({**NOT_SET, "copies": "2"}, "", "overlay doctor"),
        (NOT_SET, "refused", "overlay explain fakeup.scale"),
        ({"upstreams": "none of which"}, "refused", "overlay explain fakeup.scale"),
        (NOT_SET, "absent", "install overlay into the Python that has fakeup"),
    ],
)
def test_the_next_command_is_of_use(
    upstream: Upstream, look: Look, wrong: dict[str, str], how: str, command: str, tmp_path: Path
) -> None:
    patch = upstream.patch()
    if how == "refused":
        upstream.write(core="def scale(value): ...\n")
    elif how == "absent":
        (upstream.root / "fakeup/core.py").unlink()
    elif how == "locked":
        (tmp_path / "overlay.lock").touch()
    text = look(patch, code=how == "refused", **wrong)
    assert text.endswith(f"{command}\n")
    assert ("CANNOT BE APPLIED" in text) == (how == "refused")
    if how == "refused":
        # Before anything else is said of patches, with the reason.
        head = text.index("1 selected patch CANNOT BE APPLIED")
        assert head < text.index("no selected patch applies")
        assert "fakeup.scale: unknown-source" in text
    assert ("active: no, copies 2" in text) == ("copies" in wrong)


def test_companions_alone_are_no_selected_patch(upstream: Upstream, look: Look) -> None:
    companion = upstream.patch().replace(companion=True, without="ranks are not compared")
    text = look(companion)
    assert "no selected patch applies" in text
    assert text.endswith("overlay audit\n")


def test_each_project_has_a_command_and_the_one_beneath_all_comes_last() -> None:
    projects = {target.project.name for patch in load_patches().values() for target in patch.targets}
    assert environment().STARTED.keys() == projects
    assert [*environment().STARTED][-1] == "megatron-core"


def test_of_many_refused_patches_each_is_named() -> None:
    many = [
        Verdict(patch=f"a.b{at}", verdict="conflict" if at else "unknown-source", reason="why")
        for at in range(9)
    ]
    lines = screens.refusals(many)
    assert lines[:2] == ["9 selected patches CANNOT BE APPLIED:", "  unknown-source: a.b0"]
    assert lines[2].startswith("  conflict: a.b1, a.b2")
    assert "a.b8" in lines[-2]


@pytest.mark.parametrize("prefix", ["slime", "verl", "miles"])
def test_the_patches_of_an_image_fit_a_screen(prefix: str) -> None:
    known, applied = load_patches(), dict[str, set[str]]()
    for name, patch in known.items():
        for row in [] if patch.opt_in else tables().rows(patch, patch.targets[0]):
            for source in row.sources() if row.verdict == "apply" else ():
                applied.setdefault(source, set()).add(name)
    # miles has no image, and a Megatron of its own.
    found = [source for source in applied if source.startswith(f"{prefix} image")] or ["miles main"]
    names = sorted(applied[max(found, key=lambda source: len(applied[source]))])
    text = "\n".join(screens.families({name: known[name].changes for name in names}, armed=False))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 20, text
    text = " ".join(text.split())
    there = [name for name in names if name.partition(".")[2] in text]
    assert len(there) + sum(map(int, re.findall(r"and (\d+) more", text))) == len(names)


# -- as a process ----------------------------------------------------------------------------------


def test_bare_overlay_is_the_cockpit() -> None:
    done = overlay()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("overlay ")
    assert re.search(r"^\d+ known defects? here: \d+ would be patched", done.stdout, re.MULTILINE)
    assert "active: no, " in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert len(done.stdout.splitlines()) <= 36


def test_it_says_what_is_wrong_with_a_setting() -> None:
    done = overlay(OVERLAY_PATCHES="verl.nothing")
    assert done.returncode == 0
    assert "active: no, OVERLAY_PATCHES: 'verl.nothing' names no patch" in done.stdout
    assert "next: overlay doctor" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_source_that_nobody_knows_is_said_and_is_exit_code_1(tmp_path: Path) -> None:
    pytest.importorskip("wrapt")
    (tmp_path / "slime/utils").mkdir(parents=True)
    (tmp_path / "slime/__init__.py").touch()
    (tmp_path / "slime/utils/__init__.py").touch()
    (tmp_path / "slime/utils/seqlen_balancing.py").write_text("")
    (tmp_path / "setup.py").write_text("setup(name='slime', version='0.2.4')\n")
    done = overlay(PYTHONPATH=str(tmp_path), OVERLAY_PATCHES="slime.*")
    assert done.returncode == 1, done.stdout
    assert "slime" in done.stdout
    assert "not known for this source: slime." in done.stdout
