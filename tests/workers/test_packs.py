"""Packs: patches of third parties, loaded only when they are named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from worksite import ARMED, PATCHED, PLAIN, PROBE, Venv

SHOW = "; import sys; print('acme_overlay' in sys.modules)"


@pytest.fixture
def site(worksite: Venv, tmp_path: Path) -> Iterator[Venv]:
    """Return the worksite, and put back what is written into it."""
    backup = tmp_path / "backup"
    shutil.copytree(worksite.site / "acme_overlay", backup)
    yield worksite
    shutil.rmtree(worksite.site / "acme_overlay")
    shutil.copytree(backup, worksite.site / "acme_overlay")
    for folder in worksite.site.glob("*rival*"):
        shutil.rmtree(folder)


def test_a_pack_that_is_not_named_is_not_loaded(worksite: Venv) -> None:
    done = worksite.run("-c", PROBE + SHOW, OVERLAY="1")
    assert done.stdout.split() == [PLAIN, "False"]
    assert "acme/fakeup.scale" not in {patch["id"] for patch in worksite.read("list")}


def test_a_pack_that_is_named_is(worksite: Venv) -> None:
    done = worksite.run("-c", PROBE + SHOW, **ARMED)
    assert done.stdout.split() == [PATCHED, "True"]
    done = worksite.run("-m", "overlay", "list", OVERLAY_PACKS="acme")
    assert "acme/fakeup.scale" in done.stdout
    done = worksite.run("-m", "overlay", "explain", "acme/fakeup.scale", OVERLAY_PACKS="acme")
    assert "Here: apply, fakeup 1.2.0" in done.stdout


def test_a_pack_that_is_named_no_more_stays_in_the_configuration(worksite: Venv) -> None:
    code = (
        "import os, fakeup.core; from overlay.runtime.process import here; before = here().configuration(); "
        "os.environ.clear(); print(here().configuration() == before)"
    )
    assert worksite.run("-c", code, **ARMED).stdout == "True\n"


def test_ids_carry_the_name_of_their_pack(site: Venv) -> None:
    # A glob for the patches of a project does not catch those of a pack.
    done = site.run("-m", "overlay", "plan", "--patches", "fakeup.*", OVERLAY_PACKS="acme")
    assert done.returncode == 2
    assert "names no patch" in done.stderr
    file = site.site / "acme_overlay/patches/fakeup/scale.py"
    file.write_text(file.read_text().replace('id="acme/fakeup.scale"', 'id="verl.dynamic-cp-loss"'))
    done = site.run("-m", "overlay", "list", OVERLAY_PACKS="acme")
    assert done.returncode == 1
    assert "its place asks for 'acme/fakeup.scale'" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_packs_of_one_name_are_an_error(site: Venv) -> None:
    site.add_distribution("rival", "1.0", "[overlay.patches]\nacme = rival.patches\n")
    done = site.run("-c", PROBE, **ARMED)
    assert done.stdout.split() == [PLAIN]
    assert "'acme' is claimed by acme-overlay 4.5 (acme_overlay.patches) and rival 1.0" in done.stderr
    assert site.run("-m", "overlay", "list").returncode == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ImportError('x')\n", "cannot be loaded: ImportError('x')"),
        ("syntax error\n", "cannot be loaded: SyntaxError"),
        ("PATCH = 1\n", "defines no PATCH"),
    ],
)
def test_a_pack_that_cannot_be_loaded_is_named(site: Venv, text: str, words: str) -> None:
    (site.site / "acme_overlay/patches/fakeup/scale.py").write_text(text)
    done = site.run("-m", "overlay", "list", OVERLAY_PACKS="acme")
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
