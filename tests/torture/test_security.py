"""Nothing runs because of a setting or a lock, and no source keeps an audit from ending."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlay.errors import SourceError
from overlay.source.source import Tree
from tortures import security


def test_nothing_is_run_because_of_a_setting_or_a_lock() -> None:
    tried = security.attacks()
    assert [(name, wrong) for name, _, wrong in tried if wrong] == []
    assert [name for name, said, _ in tried if not said] == []


def test_what_must_not_happen_would_be_seen(tmp_path: Path) -> None:
    mark = security.bait(tmp_path)
    found = security.watched(tmp_path, {"OVERLAY_PACKS": "evil"})
    assert mark.exists()
    more = [tuple(event) for event in found["events"]]
    assert not all(security.allowed(event, what, {}) for event, what in more)


def test_hostile_sources_are_unknown_in_bounded_time_and_memory() -> None:
    names = ("null", "encoding", "parentheses", "minus", "f-strings", "digits", "is a pipe", "is an endless")
    found = security.sources(*names, "is a terabyte", "link to itself")
    assert len(found) > 20
    wrong = [row for row in found if row[1] != "unknown-source" or row[2] > security.PATIENCE]
    assert wrong == []


def test_a_source_of_no_reasonable_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SourceError, match="no file of at most 2097152 bytes"):
        Tree(str(tmp_path)).has("huge:f")


def test_metadata_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    from overlay.compat.projects import MEGATRON

    info = tmp_path / "megatron_core-0.16.1.dist-info"
    info.mkdir()
    os.mkfifo(info / "METADATA")
    assert Tree(str(tmp_path)).metadata_version(MEGATRON) is None
