"""Ranks that are forked from one process which has imported what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import clean

PRELOADED = """
import os

import overlay

with open("imported", "a") as file:
    file.write(f"{os.environ.get('RANK')} {overlay.status().enabled}\\n")
"""

TESTS = """
import os
import sys

import torch
import torch.distributed as dist


def test_ranks_meet():
    assert "preloaded" in sys.modules
    dist.init_process_group("nccl")
    value = torch.tensor([float(os.environ["LOCAL_RANK"])], device="cuda")
    dist.all_reduce(value)
    assert value.item() == sum(range(dist.get_world_size())) == 3
    dist.barrier()
    dist.destroy_process_group()


def test_one_rank_fails():
    assert os.environ["RANK"] != "1"


def test_one_rank_dies():
    if os.environ["RANK"] == "2":
        os.abort()
"""


def ranks(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "preloaded.py").write_text(PRELOADED)
    (folder / "test_ranks.py").write_text(TESTS)
    # Each rank would import them for itself, and none of them does anything here.
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "overlay.compat.forked_ranks", *arguments],
        cwd=folder, env=clean(**environ), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


#: Ranks, and what is imported before they are forked: the second is what the collectives of torch import.
THREE = ("3", "preloaded", "torch._dynamo")
PYTEST = ("test_ranks.py", "-q", "-p", "no:cacheprovider")


def test_ranks_meet_and_share_what_was_imported_before(tmp_path: Path) -> None:
    done = ranks(tmp_path, *THREE, "--", *PYTEST, "-k", "meet", OVERLAY="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 3
    # Once, in the process of no rank, with overlay enabled.
    assert (tmp_path / "imported").read_text() == "None True\n"


def test_without_being_asked_overlay_is_not_enabled(tmp_path: Path) -> None:
    done = ranks(tmp_path, "1", "preloaded", "--", *PYTEST, "--collect-only")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "imported").read_text() == "None False\n"


@pytest.mark.parametrize("case", ["fails", "dies"])
def test_what_goes_wrong_on_one_rank_is_no_success(case: str, tmp_path: Path) -> None:
    done = ranks(tmp_path, *THREE, "--", *PYTEST, "-k", case)
    assert done.returncode == 1
    assert done.stdout.count("1 passed") == 2


@pytest.mark.parametrize("words", [["0", "--"], ["3", "preloaded"]])
def test_what_cannot_be_understood_is_said(words: list[str], tmp_path: Path) -> None:
    done = ranks(tmp_path, *words)
    assert done.returncode == 2
    assert "usage" in done.stderr
