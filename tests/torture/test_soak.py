"""Enabling and disabling often leaves nothing behind; `scripts/torture soak` does it ten thousand times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from forked import in_a_child
from soak_cycles import SOAKS

from overlay.runtime.engine import Engine

if TYPE_CHECKING:
    from order_world import Subject

    from overlay.patch import Patch

#: Blocks of memory each time. Python's own caches, which fill up slowly, take some; a session has hundreds.
MOST = 25

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def patch(subject: Subject) -> Patch:
    (patch,) = subject.patches.values()
    return patch


@pytest.mark.parametrize("name", SOAKS)
def test_a_short_soak(patch: Patch, name: str) -> None:
    soak, count = SOAKS[name]
    found = in_a_child(lambda: soak(patch, count // 100), seconds=300)
    assert "wrong" not in found, found
    assert found["blocks"] < MOST


def test_what_leaks_is_seen(patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    disable = Engine.disable

    def leak(self: Engine) -> None:
        kept.append(self._session)
        disable(self)

    monkeypatch.setattr(Engine, "disable", leak)
    soak, _ = SOAKS["enable() and disable()"]
    assert in_a_child(lambda: soak(patch, 50), seconds=300)["blocks"] > MOST
