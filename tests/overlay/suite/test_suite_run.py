"""A run of a tiny upstream's tests, plain and under overlay."""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from output_schema import check
from suite_project import CODE, Workplace, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Return a workplace in which everything that ends was run."""
    workplace = Workplace(tmp_path_factory.mktemp("suite"))
    workplace.run(workplace.recipe("tiny"), code=1)
    return workplace


def ids(said: dict[str, Any], kind: str) -> list[str]:
    return [change["id"].partition("::")[2] for change in said["difference"][kind]]


def test_lost_won_failing_and_flaky(tiny: Workplace) -> None:
    said = tiny.said
    assert ids(said, "lost") == ["test_lost"]
    assert ids(said, "won") == ["test_won"]
    assert sorted(ids(said, "failing")) == ["", "test_broken", "test_teardown"]
    assert ids(said, "flaky") == ["test_flaky"]
    assert ids(said, "changed") == []
    assert said["difference"]["passing"] == 4  # the same, the threads, the expected failure, the nested
    reasons = {change["id"].rpartition("::")[2]: change["reason"] for change in said["difference"]["failing"]}
    assert reasons["test_broken"] == "RuntimeError: broken"
    assert reasons["test_teardown"] == "OSError: cannot be taken down"
    assert "nothing_of_this_name" in reasons["tests/test_unimportable.py"]
    assert said["difference"]["lost"][0]["reason"] == "assert 3 == 2"


def test_the_conftest_that_imports_the_target_first_gets_the_replacement(
    tiny: Workplace,
) -> None:
    assert tiny.outcomes("tiny", "overlay")["test_mixed.py::test_won"] == "passed"
    for process in tiny.lines("tiny", "overlay", "process"):
        if process["file"] == "tests/test_mixed.py":
            assert process["patches"]["acme/fakesuite.scale"]["state"] == "applied"


def test_what_was_applied_and_called_is_counted(tiny: Workplace) -> None:
    mixed = [
        process
        for mode in ("plain", "overlay")
        for process in tiny.lines("tiny", mode, "process")
        if process["file"] == "tests/test_mixed.py"
    ]
    plain, _, patched, _ = mixed  # files of a test that was lost are run again
    # Through the conftest's name, the test's own, and in a thread.
    assert plain["calls"] == {"fakesuite.core:scale": 3, "fakesuite.core:offset": 1}
    assert patched["calls"] == {"fakesuite.core:scale": 3, "fakesuite.core:offset": 1}
    assert plain["patches"] == {}
    states = {name: patch["state"] for name, patch in patched["patches"].items()}
    assert states["acme/fakesuite.offset"] == "applied"
    assert states["acme/fakesuite.never"] == "armed"


def test_a_patch_that_is_never_applied_is_said_to_be(tiny: Workplace) -> None:
    page = tiny.overlay("report").stdout
    assert "| `acme/fakesuite.never` | **never** (of 4) | 0 of 1 | 0 | 0 |" in page
    assert "| `acme/fakesuite.scale` | 4 of 4 | 1 of 1 | 3 | 3 |" in page
    assert "2 of 3 patches that apply here are called by this suite" in page
    assert "it proves nothing about `acme/fakesuite.never`" in page
    assert "not met: nothing-of-this-name>=1" in page
    assert "`tests/test_mixed.py::test_lost` (passed → failed): `assert 3 == 2`" in page
    assert "- 1: no tests" in page
    assert "Recipes of which there are no results here: megatron-core-0.16.1, " in page
    assert "FAKESUITE_REPO at v1.0 (commit " in page
    assert str(tiny.folder) not in page
    data = json.loads(tiny.overlay("report", "--json").stdout)[0]
    ours = [item for item in data["coverage"] if item["patch"].startswith("acme/")]
    assert {item["patch"]: item["called"] for item in ours} == {
        "acme/fakesuite.never": 0,
        "acme/fakesuite.offset": 1,
        "acme/fakesuite.scale": 1,
    }


def test_a_page_says_which_patches_are_younger_than_its_runs(tiny: Workplace, tmp_path: Path) -> None:
    shutil.copytree(tiny.folder / "suite-results" / "tiny", tmp_path / "tiny")
    written = tmp_path / "tiny" / "run.json"
    run = json.loads(written.read_text())
    del run["patches"]["verl.sft-balance"]
    written.write_text(json.dumps(run))
    said = "- older than `verl.sft-balance`, and shows nothing of them"
    assert said in tiny.overlay("report", str(tmp_path / "tiny")).stdout
    assert "older than" not in tiny.overlay("report").stdout


def test_what_is_printed_as_json_is_what_the_schema_says(tiny: Workplace) -> None:
    check({"runs": [tiny.said], "not_run": []}, "suite run")
    for words in (["list"], ["report"], ["diff", "suite-results/tiny/plain", "suite-results/tiny/overlay"]):
        check(json.loads(tiny.overlay(*words, "--json").stdout), f"suite {words[0]}")


def test_results_of_another_format_are_refused(tiny: Workplace, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": 2}')
    done = tiny.overlay("report", str(tmp_path))
    assert done.returncode == 2
    assert (
        f"the results {tmp_path}/run.json are not those of this overlay: run the recipe again" in done.stderr
    )


def test_a_pytest_that_a_test_starts_is_not_counted(tiny: Workplace) -> None:
    assert tiny.outcomes("tiny", "overlay")["test_nested.py::test_nested"] == "passed"
    assert not [name for name in tiny.outcomes("tiny", "overlay") if "inner" in name]


def test_results_are_read_again_by_diff_and_as_junit(tiny: Workplace) -> None:
    folder = tiny.folder / "suite-results" / "tiny"
    done = tiny.overlay("diff", str(folder / "plain"), str(folder / "overlay" / "results.jsonl"), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == tiny.said["difference"]
    assert tiny.overlay("diff", str(folder / "plain"), str(folder / "plain")).returncode == 0
    root = ET.parse(folder / "plain" / "junit.xml").getroot()  # noqa: S314 -- written by ourselves
    cases = {case.get("name", "").rpartition("::")[2]: case for case in root.iter("testcase")}
    failure = cases["test_won"].find("failure")
    assert failure is not None
    assert failure.get("message") == "failed: AssertionError: two and not three"
    assert cases["test_skipped"].find("skipped") is not None
    assert cases["test_teardown"].find("error") is not None
    assert len(cases["test_same"]) == 0


def test_a_hanging_file_is_killed_with_what_it_started(workplace: Workplace) -> None:
    recipe = workplace.recipe("hang", include='["tests/hang/*.py"]', time_limit="20")
    said = workplace.run(recipe)  # far sooner than what hangs would end by itself
    wanted = {"test_hang.py::test_before": "passed", "test_hang.py::test_hangs": "hung"}
    for mode in ("plain", "overlay"):
        assert workplace.outcomes("hang", mode) == {**wanted, "test_hang.py::test_after": "not-run"}
        assert [file["outcome"] for file in workplace.lines("hang", mode, "file")] == ["hung"]
        assert workplace.lines("hang", mode, "process")  # what it had written before
    assert ids(said, "failing") == ["test_hangs", "test_after"]
    children = [int(text) for text in (workplace.folder / "child").read_text().split()]
    assert len(children) == 2
    for pid in children:
        assert not alive(pid), "it left the process group, and was to be found all the same"


def test_a_run_that_is_stopped_leaves_nothing_behind(workplace: Workplace) -> None:
    recipe = workplace.recipe("stopped", include='["tests/hang/*.py"]')
    process = workplace.start("run", recipe)
    child = workplace.folder / "child"
    while not (child.exists() and child.read_text()):
        time.sleep(0.05)
    second = workplace.overlay("run", recipe)
    assert second.returncode == 2
    assert "another run writes into" in second.stderr
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "stopped: stopped, with all that it had started" in said
    assert "Traceback" not in said
    assert not alive(int(child.read_text()))
    assert not (workplace.folder / "suite-results" / "stopped" / "run.json").exists()


def test_a_folder_that_no_run_has_made_is_left_alone(workplace: Workplace) -> None:
    theirs = workplace.folder / "suite-results" / "theirs"
    (theirs / "plain").mkdir(parents=True)
    (theirs / "plain" / "thesis.txt").write_text("years of work")
    done = workplace.overlay("run", workplace.recipe("theirs", include='["tests/test_flaky.py"]'))
    assert done.returncode == 2
    assert "suite-results/theirs is not empty, and no suite run created it" in done.stderr
    assert [path.name for path in theirs.rglob("*")] == ["plain", "thesis.txt"]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_crash_is_not_silent(workplace: Workplace) -> None:
    said = workplace.run(workplace.recipe("crash", include='["tests/crash/*.py"]'))
    assert workplace.outcomes("crash", "overlay") == {
        "test_crash.py::test_before": "passed",
        "test_crash.py::test_crashes": "crashed",
        "test_crash.py::test_after": "not-run",
    }
    assert ids(said, "failing") == ["test_crashes", "test_after"]


def test_workers_of_xdist_enable_before_the_conftest(workplace: Workplace) -> None:
    pytest.importorskip("xdist")
    recipe = workplace.recipe(
        "xdist", 'arguments = ["-p", "xdist", "-n", "2"]', include='["tests/test_mixed.py"]'
    )
    said = workplace.run(recipe, code=1)
    assert ids(said, "won") == ["test_won"]
    assert ids(said, "lost") == ["test_lost"]
    processes = [line for line in workplace.lines("xdist", "overlay", "process") if line["attempt"] == 1]
    workers = [process for process in processes if process["worker"]]
    assert {process["worker"] for process in workers} == {"gw0", "gw1"}
    for process in workers:
        assert process["patches"]["acme/fakesuite.scale"]["state"] == "applied"
    assert sum(process["calls"]["fakesuite.core:scale"] for process in workers) == 3
    names = [line["id"] for line in workplace.lines("xdist", "overlay", "test") if line["attempt"] == 1]
    assert len(names) == len(set(names)) == 8


def test_ranks_count_as_one_test_each_of_whose_outcomes_the_worst_stands(workplace: Workplace) -> None:
    command = 'command = ["{python}", "launch.py", "-m", "pytest"]\nranks = 2'
    workplace.run(workplace.recipe("ranks", command, include='["tests/ranks/*.py"]'))
    for mode in ("plain", "overlay"):
        assert workplace.outcomes("ranks", mode) == {
            "test_ranks.py::test_all": "passed",
            "test_ranks.py::test_one_rank_fails": "failed",
            "test_ranks.py::test_one_rank_skips": "passed",
        }
        # A rank that failed has not had its launcher kill the other before that wrote its ledger.
        processes = workplace.lines("ranks", mode, "process")
        assert [process["rank"] for process in processes] == [0, 1]
        assert [process["calls"] for process in processes] == [
            {"fakesuite.core:scale": 1, "fakesuite.core:offset": 0}
        ] * 2


def test_quick_only_and_code_of_another_release(workplace: Workplace) -> None:
    core = workplace.repository / "fakesuite" / "core.py"
    core.write_text(core.read_text().replace("value * 2", "value * 3"))
    workplace.commit("v2.0")
    code = '[[code]]\ncheckout = "FAKESUITE_REPO"\nrevision = "v2.0"\npaths = ["fakesuite"]\n'
    recipe = workplace.recipe("later", 'quick = ["tests/test_mixed.py", "tests/test_nested.py"]')
    with open(recipe, "a") as file:  # noqa: PTH123
        file.write(code)
    said = workplace.run(recipe, "--quick", "--only", "mixed", code=1)
    assert said["files"] == ["tests/test_mixed.py"]
    assert "v2.0" in said["code"]["fakesuite"]
    # Its source is not the one that the patch was made for: decided, and said.
    assert said["patches"]["acme/fakesuite.scale"]["verdict"] == "unsupported"
    assert workplace.outcomes("later", "plain")["test_mixed.py::test_won"] == "passed"
    assert ids(said, "lost") == ["test_lost"]


def test_what_is_installed_is_tested_if_that_is_asked_for(workplace: Workplace) -> None:
    installed = workplace.folder / "installed"
    write(
        installed, {**CODE, "fakesuite/core.py": CODE["fakesuite/core.py"].replace("value * 2", "value * 3")}
    )
    path = f"{workplace.packs}{os.pathsep}{installed}"
    recipe = workplace.recipe("here", include='["tests/test_mixed.py"]')
    said = workplace.run(recipe, "--installed", code=1, PYTHONPATH=path)
    assert said["code"] == {"fakesuite": "installed"}
    assert workplace.outcomes("here", "plain")["test_mixed.py::test_won"] == "passed"
    assert ids(said, "lost") == ["test_lost"]


def test_progress_and_estimates_go_to_standard_error(workplace: Workplace) -> None:
    recipe = workplace.recipe("seen", include='["tests/test_nested.py"]')
    words = ("run", recipe)
    first, second = workplace.overlay(*words), workplace.overlay(*words)
    assert first.returncode == second.returncode == 0, first.stderr
    assert "seen: 1 files, plain and under overlay, takes at most 60 s" in first.stderr
    assert "[2/2] overlay tests/test_nested.py: 1 passed, 0 failed, 0 other (" in first.stderr
    assert "takes at most" not in second.stderr
    assert "acme/fakesuite.never: selected and NEVER applied in 1 processes" in first.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "tiny-0"], "there is no recipe 'tiny-0'"),
        (["run", "missing.toml"], "the recipe missing.toml cannot be read"),
        (["run", "slime-0.3.1", "-j", "0"], "--jobs 0"),
        (["report"], "there are no results in suite-results"),
        (["report", "."], "the results ./run.json cannot be read"),
        (["diff", ".", "."], "the results ./results.jsonl cannot be read"),
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


def test_a_recipe_without_quick_files_is_said(workplace: Workplace) -> None:
    done = workplace.overlay("run", workplace.recipe("slow"), "--quick")
    assert done.returncode == 0
    assert done.stdout == "slow: not run: it has no quick files\n"


def test_a_repository_that_is_not_there_is_said(workplace: Workplace) -> None:
    recipe = workplace.recipe("tiny")
    for value, said in (("", "FAKESUITE_REPO is not set"), (os.devnull, "has no revision v1.0")):
        done = workplace.overlay("run", recipe, FAKESUITE_REPO=value)
        assert done.returncode == 2
        assert said in done.stderr
