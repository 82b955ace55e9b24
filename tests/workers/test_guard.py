"""A script may start any Python. One that would run an upstream unpatched is noticed as it imports it."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from fake_upstream import FILES
from worksite import ROOT, Venv

from overlay.launch import startup
from overlay.model import settings

GUARD = ROOT / "overlay/launch/guard/sitecustomize.py"
#: Lines of a script that start the Python of `OTHER`, where overlay is not: `TRAIN` imports an upstream, and
#: `BINS` has programs. None is found by looking at the words of the script alone.
UNPATCHED = (
    ". OTHER/bin/activate; python TRAIN", "OTHER/bin/python TRAIN", "PATH=OTHER/bin:$PATH python TRAIN",
    "P=$(echo OTHER)/bin/python; $P TRAIN", "alias p=OTHER/bin/python; shopt -s expand_aliases\np TRAIN",
    "bash <<X\nOTHER/bin/python TRAIN\nX", "OTHER/bin/python <<X\nimport fakeup.core; print('trained')\nX",
    "find BINS -name launcher -exec {} TRAIN ';'", "echo TRAIN | xargs OTHER/bin/python",
    "trap 'OTHER/bin/python TRAIN' EXIT", "BASH_ENV=OTHER/bin/activate bash -c 'python TRAIN'",
    "echo 'all: ; OTHER/bin/python TRAIN' > BINS/Makefile; make -f BINS/Makefile",
    "BINS/launcher TRAIN", "nohup BINS/launcher TRAIN & wait", "BINS/uv run python TRAIN",
    "python -m torch.distributed.run --nproc-per-node 2 --no-python OTHER/bin/python TRAIN",
    "PYTHON_EXEC=OTHER/bin/python python -m torch.distributed.run --nproc-per-node 2 TRAIN",
    "python -c 'import subprocess as s; s.run([\"OTHER/bin/python\", \"TRAIN\"])'",
    "cd BINS; OTHER/bin/python -m train", "OTHER/bin/python -c 'import runpy; runpy.run_path(\"TRAIN\")'",
    "export PYTHONPATH=/nothing/there:$PYTHONPATH; OTHER/bin/python TRAIN",
    "OTHER/bin/python -c 'import threading as t; t.Thread(target=__import__, args=[\"train\"]).start()'",
    (
        "OTHER/bin/python -c 'from multiprocessing import get_context as c; "
        "p = c(\"spawn\").Process(target=__import__, args=[\"train\"]); p.start(); p.join()'"
    ),
)  # fmt: skip
#: Lines of a healthy script: they start another Python for something else, or look for an upstream only.
HEALTHY = (
    "OTHER/bin/python -c 'print(1)'", ". OURS/bin/activate; python TRAIN", "OVERLAY=0 OTHER/bin/python TRAIN",
    "OTHER/bin/python -c 'import importlib.util as u; u.find_spec(\"fakeup\").loader.get_code(\"fakeup\")'",
    "for v in none OURS; do [ -f $v/bin/activate ] && . $v/bin/activate; done; python TRAIN",
    "$(dirname $(which python))/python TRAIN", "cat <<X\nOTHER/bin/python TRAIN\nX",
    "if false; then conda activate x; OTHER/bin/python TRAIN; fi", "OTHER/bin/python -I -c 'print(1)'",
    "PYTHONPATH=SITE OTHER/bin/python -c 'import overlay; overlay.enable(); import fakeup.core'",
)  # fmt: skip
NOTICED = (
    "overlay is not enabled in {python}, which imports fakeup. What to do: install overlay in that Python"
)


@pytest.fixture
def other(worksite: Venv, tmp_path: Path) -> Venv:
    """Return an environment with an upstream and without overlay, and beside it what scripts start."""
    venv = Venv(tmp_path / "other", linked=False)
    venv.write(FILES)
    for one in (venv, worksite):
        (one.folder / "bin/activate").write_text(f"PATH={one.folder}/bin:$PATH\n")
    bins = tmp_path / "bins"
    bins.mkdir()
    (bins / "train.py").write_text("import fakeup.core\nprint('trained')\n")
    (venv.site / "train.py").write_text((bins / "train.py").read_text())
    (bins / "launcher").write_text(f"#!{venv.python}\nimport runpy, sys\nrunpy.run_path(sys.argv[1])\n")
    (bins / "uv").write_text(f'#!/bin/sh\nshift 2\nexec {venv.python} "$@"\n')
    for name in ("launcher", "uv"):
        (bins / name).chmod(0o755)
    return venv


def started(worksite: Venv, other: Venv, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script by `overlay run`."""
    bins = other.folder.parent / "bins"
    known = {"BINS": bins, "OURS": worksite.folder, "OTHER": other.folder, "SITE": worksite.site}
    for name, value in {**known, "TRAIN": bins / "train.py"}.items():
        text = re.sub(rf"\b{name}\b", str(value), text)
    script = bins / "run.sh"
    script.write_text(f"{text}\n")
    path = {"PATH": f"{worksite.on_path()['PATH']}"}
    return worksite.run("-m", "overlay", "run", *options, "bash", str(script), OVERLAY_PACKS="acme", **path)


@pytest.mark.parametrize("line", UNPATCHED)
def test_an_upstream_is_not_imported_unpatched(line: str, worksite: Venv, other: Venv) -> None:
    said = NOTICED.format(python=other.python)
    done = started(worksite, other, line, "--strict")
    assert "trained" not in done.stdout
    assert f"overlay: the job is strict or pinned, and {said}" in done.stderr
    done = started(worksite, other, line)
    assert f"overlay: warning: {said}" in done.stderr, done.stderr


def test_ray_is_not_started_where_workers_would_have_no_overlay(worksite: Venv, other: Venv) -> None:
    """A submitted job often replaces `PYTHONPATH` for them."""
    (other.site / "ray.py").write_text("print('trained')\n")
    done = started(worksite, other, "OTHER/bin/python -c 'import ray'", "--strict")
    assert (done.stdout, "which imports ray. What to do" in done.stderr) == ("", True)


def test_a_pin_holds_the_other_pythons_too(worksite: Venv, other: Venv, tmp_path: Path) -> None:
    file = str(tmp_path / "overlay.lock")
    worksite.read("lock", "--file", file, OVERLAY_PACKS="acme")
    done = started(worksite, other, UNPATCHED[1], "--pin", file)
    assert (done.stdout, done.returncode) == ("", 1)


@pytest.mark.parametrize("line", HEALTHY)
def test_healthy_scripts_run(line: str, worksite: Venv, other: Venv) -> None:
    done = started(worksite, other, f"set -e\n{line}\necho ran", "--strict")
    assert done.stdout.endswith("ran\n"), done.stderr
    assert "which imports" not in done.stderr


def test_with_no_patch_selected_nothing_is_guarded(worksite: Venv, other: Venv) -> None:
    line = f"{UNPATCHED[1]}; echo $PYTHONPATH"
    done = started(worksite, other, line, "--strict", "--patches", "none")
    assert (done.stdout, done.stderr) == ("trained\n\n", "")


@pytest.mark.parametrize("own", [True, False])
def test_a_python_otherwise_starts_as_it_would(own: bool, worksite: Venv, other: Venv) -> None:
    """With its own `sitecustomize`, the path that it would have, and one entry, however often it is run."""
    for venv in (other, worksite):
        file = venv.site / "sitecustomize.py"
        if own:
            file.write_text("import sys\nsys.told = __file__\n")
        try:
            told = "getattr(sys, 'told', None), sys.modules.get('sitecustomize')"
            code = f"import sys; print(sys.path[1:], {told})"
            plain = venv.run("-c", code).stdout
            run = f"{worksite.python} -m overlay run" if venv is worksite else ""
            done = started(worksite, other, f'{run} {venv.python} -c "{code}"; echo $PYTHONPATH', "--strict")
            assert done.stdout.splitlines()[0] == plain.rstrip() if own else plain.rstrip().rpartition(" ")[0]
            assert (str(file) in plain) == own
            (guard,) = done.stdout.splitlines()[1:]
            assert guard == str(worksite.site / "overlay/launch/guard")
        finally:
            file.unlink(missing_ok=True)


def test_what_its_own_sitecustomize_lacks_is_said_as_ever(worksite: Venv, other: Venv) -> None:
    (other.site / "sitecustomize.py").write_text("import nothing_of_that_name\n")
    (other.site / "fakeup/__init__.py").write_text("")
    done = started(worksite, other, UNPATCHED[1], "--strict")
    assert "Error in sitecustomize" in done.stderr
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in done.stderr
    assert "trained" not in done.stdout


def test_an_upstream_behind_a_finder_of_its_own_is_noticed(
    worksite: Venv, other: Venv, tmp_path: Path
) -> None:
    """As an editable installation has it."""
    (other.site / "fakeup").rename(tmp_path / "fakeup")
    (other.site / "finder_of_fakeup.py").write_text(
        f"""
import sys
from importlib.machinery import PathFinder
class Finder:
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{str(tmp_path)!r}]) if name == "fakeup" else None
sys.meta_path.append(Finder)
"""
    )
    (other.site / "of.pth").write_text("import finder_of_fakeup\n")
    assert "trained" in other.run(str(other.folder.parent / "bins/train.py")).stdout
    done = started(worksite, other, UNPATCHED[1], "--strict")
    assert "which imports fakeup" in done.stderr
    assert "trained" not in done.stdout


def test_older_pythons_can_read_it() -> None:
    ast.parse(GUARD.read_text(), feature_version=(3, 7))


def test_the_words_for_no_are_those_of_the_settings() -> None:
    """Two files have them too, as they must work where the settings cannot be imported."""
    assert set(startup._NO) == {"", *settings._FALSE}
    assert f"_NO = {startup._NO}".replace("'", '"') in GUARD.read_text()
