"""`overlay doctor` says no when the answer is no, and what to do then."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from worksite import Venv, program, refused


def checks(found: Any) -> dict[str, Any]:
    return {check["name"]: check for check in found["checks"]}


def test_all_is_well(worksite: Venv) -> None:
    found = worksite.read("doctor", OVERLAY="1", OVERLAY_PACKS="acme", **worksite.on_path())
    assert found["armed"]
    assert {name: check["answer"] for name, check in checks(found).items()} == {
        "start-up file": "yes",
        "OVERLAY": "yes",
        "selection": "yes",
        "pin": "-",
        "python": "yes",
        "upstreams": "yes",
    }
    assert "fakeup 1.2.0 in " + str(worksite.site) in checks(found)["upstreams"]["found"]
    assert found["todo"] == ["overlay plan # what is decided, patch by patch"]
    assert checks(found)["start-up file"]["found"] == str(worksite.site / "overlay-startup.pth")
    done = worksite.run("-m", "overlay", "doctor", OVERLAY="1", **worksite.on_path())
    assert done.stdout.startswith("yes: a Python process that starts here and now is patched\n")
    assert done.stdout.endswith("\nnext:\n  overlay plan # what is decided, patch by patch\n")
    assert "launch" not in done.stderr
    # In a plain shell nobody has said that anything is to be patched.
    plain = worksite.run("-m", "overlay", "doctor", **worksite.on_path())
    assert plain.returncode == 1
    assert plain.stdout.splitlines()[1:3] == [
        "Only OVERLAY=1 is missing: a process that `overlay run` starts is patched.",
        "",
    ]
    wrong = worksite.run("-m", "overlay", "doctor", OVERLAY_PATCHES="none", **worksite.on_path())
    assert "Only OVERLAY=1" not in wrong.stdout


@pytest.mark.parametrize(
    ("environ", "name", "words"),
    [
        ({"OVERLAY": ""}, "OVERLAY", "put `overlay run` before the command"),
        ({"OVERLAY": "perhaps"}, "OVERLAY", "set OVERLAY=1"),
        ({"OVERLAY": "", "OVERLAY_PIN": "x.lock"}, "OVERLAY", "put `overlay run` before the command"),
        ({"OVERLAY_PATCHES": "verl.nothing"}, "selection", "correct that setting"),
        ({"OVERLAY_PATCHES": "none"}, "selection", "nothing is selected"),
        ({"OVERLAY_STRICT": "perhaps"}, "selection", "correct that setting"),
        ({"OVERLAY_PACKS": "acme2"}, "selection", "correct that setting"),
        ({"OVERLAY_TRUST": "/gone.json"}, "selection", "correct that setting"),
    ],
)
def test_a_setting_is_in_the_way(worksite: Venv, environ: dict[str, str], name: str, words: str) -> None:
    given = {"OVERLAY": "1", **worksite.on_path(), **environ}
    if environ.get("OVERLAY_STRICT"):  # or the doctor itself is stopped at its start, which says the same
        given["OVERLAY"] = ""
    found = worksite.read_failing("doctor", **given)
    assert not found["armed"]
    assert checks(found)[name]["answer"] == "no"
    assert any(text.startswith(words) for text in found["todo"])
    done = worksite.run("-m", "overlay", "doctor", **given)
    assert done.returncode == 1
    assert done.stdout.startswith("no: a Python process that starts here and now is NOT patched\n")
    assert f"- {words}" in " ".join(done.stdout.partition("what to do")[2].split())


def test_a_selection_without_a_patch_that_can_be_applied_is_in_the_way(
    worksite: Venv, tmp_path: Path
) -> None:
    """A process that starts here is enabled, and nothing in it is patched."""
    given = {"OVERLAY": "1", "OVERLAY_PACKS": "acme", **worksite.on_path()}
    other = tmp_path / "fakeup"
    shutil.copytree(worksite.site / "fakeup", other)
    core = other / "core.py"
    core.write_text(core.read_text().replace("def scale(", "def scale(more, "))
    given["PYTHONPATH"] = str(tmp_path)
    found = worksite.read_failing("doctor", **given, OVERLAY_PATCHES="acme/fakeup.scale")
    assert checks(found)["upstreams"]["answer"] == "no"
    assert "1 selected patch cannot be applied: acme/fakeup.scale" in checks(found)["upstreams"]["found"]
    assert found["todo"] == ["overlay plan # what is decided, patch by patch"]
    # In strict mode one that cannot be applied stops a job; else those that can be are.
    both = {**given, "OVERLAY_PATCHES": "acme/fakeup.scale,verl.fast-partitioner"}
    found = worksite.read("doctor", **both)
    assert "1 selected patch cannot be applied" in checks(found)["upstreams"]["found"]
    assert found["todo"] == ["overlay plan # what is decided, patch by patch"]
    found = worksite.read_failing("doctor", **both, OVERLAY_STRICT="1")
    assert checks(found)["upstreams"]["answer"] == "no"
    del given["PYTHONPATH"]
    found = worksite.read("doctor", **given, OVERLAY_PATCHES="miles.loss-memory")
    assert checks(found)["upstreams"]["found"].startswith("none that a selected patch is for, on the path")


def test_a_variable_that_is_no_setting_is_a_warning(worksite: Venv) -> None:
    given = {"OVERLAY": "1", "OVERLAY_PATCH": "all", **worksite.on_path()}
    found = worksite.read("doctor", **given)
    assert found["armed"]
    assert checks(found)["selection"]["answer"] == "yes"
    assert "; warning: OVERLAY_PATCH: unknown variable, ignored" in checks(found)["selection"]["found"]
    assert found["todo"][0] == "correct the name of that variable, or unset it"
    done = worksite.run("-m", "overlay", "doctor", **given)
    assert done.stdout.startswith("yes: a Python process that starts here and now is patched\n")


def test_a_python_without_the_start_up_file(worksite: Venv, tmp_path: Path) -> None:
    other = Venv(tmp_path / "venv", linked=False)
    found = worksite.read_failing("doctor", OVERLAY="1", **other.on_path())
    check = checks(found)["python"]
    assert check["answer"] == "no"
    assert check["found"].startswith(str(other.folder))
    assert "is a different Python, without overlay: install overlay there as well" in check["todo"]
    given = {"OVERLAY": "1", "PYTHON_EXEC": str(other.python), **worksite.on_path()}
    assert checks(worksite.read_failing("doctor", **given))["PYTHON_EXEC"]["answer"] == "no"


def test_a_python_of_another_version_in_the_same_folder(worksite: Venv, tmp_path: Path) -> None:
    """As `/usr/bin` may have: its packages are others."""
    lines = "import sys; sys.version_info = 3, 99; exec(sys.argv[1])"
    program(tmp_path / "python3", f'#!/bin/sh\nOVERLAY=0 exec {worksite.python} -c "{lines}" "$2"\n')
    path = {"PATH": f"{tmp_path}:{worksite.on_path()['PATH']}"}
    check = checks(worksite.read_failing("doctor", OVERLAY="1", **path))["python3"]
    assert (check["answer"], check["found"]) == ("no", f"{tmp_path}/python3, without overlay")
    for words in (["python3", "x.py"], ["sh", "-c", "python3 x.py"]):
        assert "is a different Python, without overlay: install" in refused(
            worksite, "--strict", *words, **path
        )


def test_a_pin_that_does_not_hold_here(worksite: Venv, tmp_path: Path) -> None:
    file = tmp_path / "overlay.lock"
    worksite.read("lock", "--file", str(file), "--patches", "megatron.recompute")
    given = {"OVERLAY_PIN": str(file), **worksite.on_path()}
    found = checks(worksite.read_failing("doctor", **given, OVERLAY_PATCHES="megatron.recompute"))
    assert found["pin"]["answer"] == "yes"
    found = checks(worksite.read_failing("doctor", **given))
    assert found["pin"]["answer"] == "yes"  # `overlay run` takes the selection from the lock
    found = checks(worksite.read_failing("doctor", **given, OVERLAY_PATCHES="verl.*"))
    assert found["pin"]["answer"] == "no"
    assert f"`OVERLAY_PIN= overlay lock --file {file} --patches 'verl.*' --update`" in found["pin"]["todo"]
    worksite.read("lock", "--update", "--file", str(file), "--patches", "acme/*", OVERLAY_PACKS="acme")
    found = checks(worksite.read_failing("doctor", **given))
    assert found["pin"]["answer"] == "yes"  # and its packs


def test_garbage_in_the_environment_is_no_traceback(worksite: Venv) -> None:
    garbage = dict.fromkeys(("OVERLAY_PATCHES", "OVERLAY_LOG", "OVERLAY_PIN"), "\x01 ;,*[\udcff")
    for words in ([], ["doctor"], ["list"], ["run", "python", "-c", "print('ran')"]):
        done = worksite.run("-m", "overlay", *words, **garbage, **worksite.on_path())
        assert "Traceback" not in done.stderr, done.stderr
        assert done.stdout != "ran\n"
        assert done.returncode == (2 if words[:1] == ["run"] else 1 if words == ["doctor"] else 0)
