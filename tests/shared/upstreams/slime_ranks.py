"""What tests share that start four ranks with a slime, or its fork, first on their path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from checks import UPSTREAMS
from listed_sources import Listed
from rank_rows import run_once

#: The commit of the fork, and its release on the package index, among revisions of slime.
MILES, MILES_RL = "31f1ca961", "0.0.2"
_FORKS = {MILES: "miles", MILES_RL: "miles-rl"}


@pytest.fixture
def folder(revision: str, listed: Listed) -> Path:
    """Return the folder of the revision that the test is parametrised with."""
    return listed(f"{_FORKS.get(revision, 'slime')}=={revision}")


def on_ranks(folder: Path, module: str, *patches: str) -> dict[str, list[Any]]:
    """Return what the ranks found in the cases of a module of `checks.UPSTREAMS`, which run once.

    `folder`: of the slime. `module`: as `megatron_main` has it. `patches`: names without the project.
    """
    project = folder.name.partition("-")[0]
    with mock.patch.dict(os.environ, {"SLIME_FORK": project} if project == "miles" else {}):
        return run_once(
            4, UPSTREAMS / f"{module}.py", timeout=300, program="megatron_main.py", release=folder,
            patches=",".join(f"{project}.{name}" for name in patches),
        )  # fmt: skip
