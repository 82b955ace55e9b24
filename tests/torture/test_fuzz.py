"""A little of `scripts/torture fuzz` in every run of the tests, each time with other inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checks import SEED

from tortures import fuzz


@pytest.mark.parametrize("kind", ["settings", "locks", "commands", "lengths"])
def test_an_error_of_our_own_or_a_right_answer(kind: str) -> None:
    print(f"OVERLAY_TEST_SEED={SEED}")
    row = getattr(fuzz, kind)(SEED, 200)
    assert row.wrong == []
    assert row.refused > 10
    assert row.accepted > 0


def test_a_wrong_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from overlay.records import lock as lockfile

    def read(path: str) -> Any:
        return Path(path).read_bytes()[0]

    monkeypatch.setattr(lockfile, "read", read)
    assert len(fuzz.locks(SEED, 20).wrong) > 10
