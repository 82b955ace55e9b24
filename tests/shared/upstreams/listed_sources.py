"""The sources of the upstreams, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sources import releases
from sources.git_sources import FetchError

#: The fixtures that get the folder of a source, run a program there, and run one on the source of a test.
Listed = Callable[[str], Path]
Findings = Callable[..., dict[str, Any]]
Said = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def listed() -> Listed:
    """Return the function that gets the folder of a source, or skips the test that asks for it.

    A source is a line of the list of releases by its name, or `NAME==VERSION`.
    """
    lines = {line.name: line for line in releases.read()}
    missing: dict[str, str] = {}

    def get(name: str) -> Path:
        if name not in missing:
            try:
                return releases.fetch(lines.get(name, releases.Release(name)))
            except FetchError as error:
                # Asked once: without a network each further test would wait for it again.
                missing[name] = str(error)
        pytest.skip(missing[name])

    return get
