"""A step of slime without log-probabilities, which is in the known issues: what each release does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real


@pytest.mark.parametrize("revision", ["v0.3.1"])
def test_one_step_per_rollout_asks_for_log_probs_of_the_rollout(
    revision: str, slime: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> None:
    found = findings(slime(revision), "no_log_probs_check.py")
    assert found == {"without": "TypeError: 'NoneType' object is not iterable", "with": ""}
