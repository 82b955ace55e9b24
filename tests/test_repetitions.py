"""What is left to the nightly run: a test that says so, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from repetitions import LEFT, pytest_runtest_setup

WHOLE = pytest.mark.nightly("others stand for it").mark
OF_WORLD = pytest.mark.nightly("others stand for it", world=(8, "x")).mark
OF_RELEASE = pytest.mark.nightly("others stand for it", release=("0.1",)).mark


@pytest.mark.parametrize(
    ("marks", "params", "left"),
    [
        ([], {"world": 8}, False),
        ([WHOLE], {}, True),
        ([OF_WORLD], {"world": 2, "release": "0.1"}, False),
        ([OF_WORLD], {"world": "x"}, True),
        ([OF_WORLD], {}, False),
        ([OF_RELEASE, OF_WORLD], {"world": 8, "release": "1.0"}, True),
    ],
)
def test_what_says_so_is_left_out_by_day_alone(
    marks: list[Any], params: dict[str, Any], left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    item: Any = SimpleNamespace(callspec=SimpleNamespace(params=params), iter_markers=lambda _: marks)
    monkeypatch.delenv("TESTS_ONCE", raising=False)
    pytest_runtest_setup(item)
    monkeypatch.setenv("TESTS_ONCE", "1")
    if left:
        with pytest.raises(pytest.skip.Exception, match=f"{LEFT}: others stand for it"):
            pytest_runtest_setup(item)
    else:
        pytest_runtest_setup(item)
