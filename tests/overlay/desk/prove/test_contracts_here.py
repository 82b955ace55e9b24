"""`overlay prove`, on a library of one function: what is proven, and each way in which that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import lives
from toy_pack import KINDS, Toy


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


def test_a_patch_is_proven_with_any_seed_that_is_printed(toy: Toy) -> None:
    done = toy.run("prove", "toy/toylib.right")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "overlay: [1/1] toy/toylib.right: proven\n"
    seed = done.stdout.rpartition("seed ")[2].strip()
    again = toy.run("prove", "toy/toylib.right", "--seed", seed, "--json")
    (row,) = json.loads(again.stdout)["rows"]
    assert (row["verdict"], row["alone"], row["patched"]) == ("proven", "wrong", "holds")
    assert row["why"] == f"scale is {2 * (int(seed) + 3) + 1}"
    assert row["where"] == "toylib 1.2.0"


def test_each_way_to_fail_is_a_row_of_its_own(toy: Toy) -> None:
    names = [f"toy/toylib.{name}" for name in KINDS]
    done = toy.run("prove", *names, "--json", "--timeout", "20", "--seed", "1", PYTHONOPTIMIZE="1")
    assert done.returncode == 1, done.stderr
    rows = {row["patch"].partition(".")[2]: row for row in json.loads(done.stdout)["rows"]}
    said = {name: (row["verdict"], row["why"]) for name, row in rows.items()}
    ended = "with the patch: crashed: its process ended"
    assert said["right"][0] == "proven"
    assert said["raises"] == ("FAILS", "with the patch: raises: AssertionError: of its own")
    assert said["hangs"] == ("FAILS", "with the patch: no end: not within 20 s")
    assert said["dies"] == ("FAILS", f"{ended} by SIGABRT: about to die")
    assert said["leaves"] == ("FAILS", f"{ended} with status 0, without an answer")
    assert said["lacks"] == ("not run", "no_such_package is not installed")
    assert said["imports"] == ("not run", "no_such_module is not installed")
    assert said["bursts"] == ("not shown", "without the patch: crashed: its process ended by SIGABRT")
    assert said["blind"][0] == "not shown"
    # What they started, in a session of its own, is ended with them.
    assert [pid for pid in map(int, (toy.folder / "started").read_text().split()) if lives(pid)] == []


def test_what_ran_not_at_all_is_no_pass(toy: Toy) -> None:
    assert toy.run("prove", "toy/toylib.lacks", "toy/toylib.right").returncode == 1
    assert toy.run("prove", "toy/toylib.lack*").returncode == 1
    toy.write("toylib/VERSION", "3.0")
    toy.core("def scale(x):\n    return x\n")
    done = toy.run("prove", "toy/toylib.right")
    assert done.returncode == 1
    assert "not run" in done.stdout
    assert "unknown-source" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [("--seed", "x"), ("--timeout", "nan"), ("--timeout", "0"), ("--timeout", "-1"), ("toy/toylib.wright",)],
)
def test_what_cannot_be_understood_is_said(toy: Toy, wrong: tuple[str, ...]) -> None:
    done = toy.run("prove", *wrong)
    assert done.returncode == 2
    assert wrong[-1] in done.stderr
