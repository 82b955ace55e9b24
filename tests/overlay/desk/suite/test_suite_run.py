"""A run of a tiny upstream's tests, plain and under overlay."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import lives
from fake_upstream import write_files
from suite_project import CODE, Workplace

from overlay.desk.suite.report import coverage

MIXED = '["tests/test_mixed.py"]'


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Return a workplace in which everything that ends was run."""
    workplace = Workplace(tmp_path_factory.mktemp("suite"))
    workplace.run(workplace.recipe("tiny"), code=1)
    return workplace


def ids(said: dict[str, Any], kind: str) -> list[str]:
    return [change["id"].partition("::")[2] for change in said["difference"][kind]]


def patches(said: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["patch"].rpartition(".")[2]: one for one in said["coverage"]}


def test_lost_won_failing_and_flaky(tiny: Workplace) -> None:
    difference = tiny.said["difference"]
    reasons = {change["id"]: change["reason"] for change in difference["failing"]}
    mixed = "tests/test_mixed.py::test_"
    assert reasons == {
        f"{mixed}broken": "RuntimeError: broken in tests/test_mixed.py",
        f"{mixed}teardown": "OSError: cannot be taken down",
        "tests/test_unimportable.py": "ModuleNotFoundError: No module named 'nothing_of_this_name'",
    }
    lost = {"id": f"{mixed}lost", "before": "passed", "after": "failed", "reason": "assert 3 == 2"}
    assert difference["lost"] == [lost]
    # The conftest imports its target first, and gets the replacement.
    assert ids(tiny.said, "won") == ["test_won"]
    assert ids(tiny.said, "flaky") == ["test_flaky"]
    assert difference["changed"] == []
    assert difference["passing"] == 4  # the same, the class, the expected failure, the nested
    # A pytest that a test has started is none of the run's.
    assert not [name for name in tiny.outcomes("tiny", "overlay") if "inner" in name]


def test_where_each_patch_was_in_place_and_what_it_did_is_told(tiny: Workplace) -> None:
    found = patches(tiny.said)
    # The module that cannot be imported has no test.
    assert {(one["applied"], one["processes"]) for one in (found["scale"], found["offset"])} == {(3, 3)}
    assert (found["scale"]["calls"], found["scale"]["changed"]) == (3, 3)
    assert (found["never"]["applied"], found["never"]["calls"], found["never"]["troubles"]) == (0, None, [])
    text = tiny.overlay("run", tiny.recipe("told"), "--only", "mixed").stdout
    assert "- NEVER applied, so nothing is shown of: `acme/fakesuite.never`\n" in text
    assert "- `acme/fakesuite.scale`: applied in 1 of 1 processes, changed 3 of 3" in text
    assert "- `tests/test_mixed.py::test_lost`: passed -> failed, `assert 3 == 2`" in text
    assert "4 pass in both" not in text
    assert "- 1: no tests" in text
    assert str(tiny.folder) not in text + json.dumps(tiny.said)


def test_how_much_was_changed_may_be_unknown(tmp_path: Path) -> None:
    """It is where the number is on a device, or calls are compiled."""
    counts = [{"calls": 2, "changed": 1}, {"calls": 3}]
    for number, found in enumerate(counts):
        patch = {"state": "applied", "why": "", "counts": found}
        ledger = {"enabled": True, "patches": {"acme.scale": patch}}
        (tmp_path / f"test-{number}.json").write_text(json.dumps(ledger))
    (said,) = coverage(str(tmp_path))
    assert (said["calls"], said["changed"]) == (5, None)


def test_a_file_that_hangs_or_crashes_loses_what_it_does_not_get_to(workplace: Workplace) -> None:
    include = '["tests/hang/*.py", "tests/crash/*.py"]'
    said = workplace.run(workplace.recipe("bad", include=include, time_limit="20"), code=1)
    before = {"test_hang.py::test_before": "passed", "test_hang.py": "hung"}
    before |= {f"test_crash.py::test_{name}": "passed" for name in ("before", "crashes", "after")}
    assert workplace.outcomes("bad", "plain") == before
    assert workplace.outcomes("bad", "overlay") == {
        "test_hang.py::test_before": "passed", "test_hang.py": "hung",
        "test_crash.py::test_before": "passed", "test_crash.py": "crashed",
    }  # fmt: skip
    (change,) = said["difference"]["failing"]
    assert (change["before"], change["after"]) == ("hung", "hung")
    assert change["reason"].startswith("no end within 20 s")
    assert {(one["id"].rpartition("/")[2], one["after"]) for one in said["difference"]["lost"]} == {
        ("test_crash.py::test_crashes", "missing"),
        ("test_crash.py::test_after", "missing"),
        ("test_crash.py", "crashed"),
    }
    assert "exit status -6" in said["difference"]["lost"][-1]["reason"]
    assert said["difference"]["passing"] == 2
    assert patches(said)["scale"]["processes"] == 2  # written before it hung
    children = [int(text) for text in (workplace.folder / "child").read_text().split()]
    assert len(children) == 2
    for pid in children:
        assert not lives(pid), "it left the process group, and was to be found all the same"


def test_a_run_that_is_stopped_leaves_its_results_and_nothing_else(workplace: Workplace) -> None:
    recipe = workplace.recipe("stopped", include='["tests/hang/*.py", "tests/test_flaky.py"]', quick="[]")
    process = workplace.start("run", recipe)
    child, folder = workplace.folder / "child", workplace.folder / "suite-results" / "stopped"
    written = folder / "plain/1/tests/test_flaky.py"
    while not (child.exists() and child.read_text() and [*written.glob("*.ended")]):
        time.sleep(0.05)
    second = workplace.overlay("run", recipe)
    assert second.returncode == 2
    assert "stopped: File exists; remove it, or choose another --out" in second.stderr
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "stopped: stopped, with all that it had started" in said
    assert "Traceback" not in said
    assert not lives(int(child.read_text()))
    assert not (folder / "work").exists()
    assert workplace.outcomes("stopped", "plain")["test_flaky.py::test_flaky"] == "passed"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import overlay; overlay.disable()", "overlay was off under overlay in a process of tests/test_m"),
        ("import overlay; overlay.enable()", "overlay was on in the plain run in a process of tests/test_m"),
        ("raise OSError('its own')", "no test passes without overlay, so none can be lost; the first says: "),
    ],
)
def test_two_runs_that_cannot_be_compared_are_an_error(workplace: Workplace, code: str, said: str) -> None:
    conftest = workplace.repository / "tests" / "conftest.py"
    conftest.write_text(f"{code}\n{conftest.read_text()}")
    workplace.commit("v2.0")
    recipe = workplace.recipe("void", include=MIXED, **{"tests.from": '["$FAKESUITE_REPO@v2.0"]'})
    done = workplace.overlay("run", recipe)
    assert done.returncode == 2
    assert said in done.stderr


def test_workers_of_xdist_enable_before_the_conftest(workplace: Workplace) -> None:
    pytest.importorskip("xdist")
    recipe = workplace.recipe("xdist", arguments='["-p", "xdist", "-n", "2"]', include=MIXED)
    said = workplace.run(recipe, code=1)
    assert (ids(said, "won"), ids(said, "lost")) == (["test_won"], ["test_lost"])
    scale = patches(said)["scale"]
    assert (scale["applied"], scale["processes"], scale["calls"]) == (2, 2, 3)
    assert len(workplace.outcomes("xdist", "overlay")) == 8


def test_ranks_count_as_one_test_each_of_whose_outcomes_the_worst_stands(workplace: Workplace) -> None:
    command = '["{python}", "launch.py", "-m", "pytest"]'
    said = workplace.run(
        workplace.recipe("ranks", command=command, ranks="2", include='["tests/ranks/*.py"]')
    )
    for mode in ("plain", "overlay"):
        assert workplace.outcomes("ranks", mode) == {
            "test_ranks.py::test_all": "passed",
            "test_ranks.py::test_one_rank_fails": "failed",
            "test_ranks.py::test_one_rank_skips": "passed",
        }
    # A rank that failed has not had its launcher kill the other before that wrote what it had.
    scale = patches(said)["scale"]
    assert (scale["applied"], scale["processes"], scale["calls"]) == (2, 2, 2)


def test_quick_only_and_code_of_another_release(workplace: Workplace) -> None:
    core = workplace.repository / "fakesuite" / "core.py"
    core.write_text(core.read_text().replace("value * 2", "value * 3"))
    workplace.commit("v2.0")
    code = {"code.from": '["$FAKESUITE_REPO@v2.0"]', "code.paths": '["fakesuite"]'}
    recipe = workplace.recipe("later", quick='["tests/test_mixed.py", "tests/test_nested.py"]', **code)
    said = workplace.run(recipe, "--quick", "--only", "mixed", code=1)
    assert said["files"] == ["tests/test_mixed.py"]
    assert "v2.0" in said["code"]["fakesuite"]
    # Its source is not the one that the patch was made for: left out, and said.
    scale = patches(said)["scale"]
    assert scale["applied"] == 0
    assert scale["troubles"][0].startswith("skipped: ")
    assert workplace.outcomes("later", "plain")["test_mixed.py::test_won"] == "passed"
    assert ids(said, "lost") == ["test_lost"]


def test_what_is_installed_is_tested_if_that_is_asked_for(workplace: Workplace) -> None:
    installed = workplace.folder / "installed"
    core = CODE["fakesuite/core.py"].replace("value * 2", "value * 3")
    write_files(installed, {**CODE, "fakesuite/core.py": core})
    path = f"{workplace.packs}{os.pathsep}{installed}"
    said = workplace.run(workplace.recipe("here", include=MIXED), "--installed", code=1, PYTHONPATH=path)
    assert said["code"] == {"fakesuite": "installed"}
    assert workplace.outcomes("here", "plain")["test_mixed.py::test_won"] == "passed"
    assert ids(said, "lost") == ["test_lost"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "tiny-0"], "there is no recipe 'tiny-0'; there are: megatron-core-0.16.1, "),
        (["run"], "name a recipe, or all; there are: megatron-core-0.16.1, "),
        (["run", "missing.toml"], "the recipe missing.toml cannot be read"),
        (["run", "slime-0.3.1", "-j", "0"], "--jobs must be at least 1, got 0"),
        (["frobnicate"], "invalid choice"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(words: list[str], said: str, tmp_path: Path) -> None:
    workplace = Workplace.__new__(Workplace)
    workplace.folder = workplace.repository = workplace.packs = tmp_path
    done = workplace.overlay(*words, OVERLAY_PACKS="", OVERLAY_PATCHES="all")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_not_run_is_said_before_anything_runs(workplace: Workplace) -> None:
    recipe = workplace.recipe("slow")
    done = workplace.overlay("run", recipe, "--quick")
    assert (done.returncode, done.stdout) == (0, "slow: not run: it has no quick files\n")
    for environ, said in (
        ({"FAKESUITE_REPO": ""}, "$FAKESUITE_REPO@v1.0: the variable is not set"),
        ({"FAKESUITE_REPO": os.devnull}, "slow: $FAKESUITE_REPO@v1.0: fatal: "),
        ({"OVERLAY_PATCHES": "acme/fakesuite.sclae"}, "acme/fakesuite.scale"),
    ):
        done = workplace.overlay("run", recipe, **environ)
        assert done.returncode == 2
        assert said in done.stderr
        assert "[1/" not in done.stderr
