"""Which process of a job this is, by what launchers write into the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlay.model.rank import is_first, note_driver, rank, rank_and_host

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("environ", "want"),
    [
        ({}, None),
        ({"RANK": "3"}, 3),
        ({"RANK": "0", "LOCAL_RANK": "1", "SLURM_PROCID": "2"}, 0),
        ({"LOCAL_RANK": "1", "SLURM_PROCID": "0"}, 1),
        ({"SLURM_PROCID": "5"}, 5),
        ({"RANK": "", "SLURM_PROCID": "5"}, 5),
        ({"RANK": "first"}, None),
        ({"RANK": "-1"}, None),
    ],
)
def test_the_rank(clean: pytest.MonkeyPatch, environ: dict[str, str], want: int | None) -> None:
    for name, value in environ.items():
        clean.setenv(name, value)
    assert rank() == want
    assert is_first() == (want in (None, 0))


def test_a_worker_of_ray_is_not_the_task_that_started_its_node(clean: pytest.MonkeyPatch) -> None:
    clean.setattr(sys, "orig_argv", ["python", "-u", "/site/ray/_private/workers/default_worker.py", "--x"])
    clean.setenv("SLURM_PROCID", "1")
    assert rank() is None
    clean.setenv("RANK", "2")
    assert rank() == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the environment of a parent is read from /proc")
@pytest.mark.parametrize(
    ("own", "want"),
    [({}, None), ({"WORLD_SIZE": "8"}, 1), ({"RANK": "2", "WORLD_SIZE": "8"}, 2), ({"LOCAL_RANK": "0"}, 1)],
)
def test_a_worker_of_ray_is_not_the_pod_of_its_node(
    clean: pytest.MonkeyPatch, tmp_path: Path, own: dict[str, str], want: int | None
) -> None:
    """A pod has the number of a node in RANK, and that of all nodes in WORLD_SIZE."""
    worker = tmp_path / "default_worker.py"
    worker.write_text("from overlay.model.rank import rank\nprint(rank())\n")
    node = "import os, subprocess, sys\nsubprocess.run(sys.argv[1:3], env=os.environ | eval(sys.argv[3]))"
    pod = {**os.environ, "RANK": "1", "WORLD_SIZE": "4"}
    command = [sys.executable, "-c", node, sys.executable, str(worker), repr(own)]
    done = subprocess.run(command, env=pod, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(want)


@pytest.mark.parametrize(("own", "want"), [({}, None), ({"LOCAL_RANK": "1"}, 3)])
def test_a_driver_of_ray_is_not_its_pod(
    clean: pytest.MonkeyPatch, own: dict[str, str], want: int | None
) -> None:
    clean.setattr("overlay.model.rank._drives", False)
    for name, value in {"RANK": "3", **own}.items():
        clean.setenv(name, value)
    assert rank() == 3
    note_driver()
    assert rank() == want


def test_a_place_is_one_word_with_a_digit(clean: pytest.MonkeyPatch) -> None:
    assert rank_and_host() == ""
    clean.setenv("RANK", "2")
    assert rank_and_host().startswith("[rank=2,host=")
    assert len(rank_and_host().split()) == 1
