"""What is repeated on another release is left to the nightly run, if the sources say that it is repeated.

A file whose tests run on several releases says `by_source(PATCH..., PARAMETER=PROJECT)`. With `TESTS_ONCE` in
the environment, as `scripts/test` sets it for a whole run by day, a test runs once for each source: a release
on which the patches are decided on alike, by variant and by every digest that is looked at, is left out.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

import overlay

#: What a reason begins with (`scripts/testing/suite.py` counts these).
LEFT = "left to the nightly run"

#: By test, its other parameters and the source: the release on which it runs.
_first: dict[tuple[object, ...], str] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test to the nightly run if it has been run, or will be, on the same source."""
    mark = item.get_closest_marker("by_source")
    called: Any = getattr(item, "callspec", None)
    if mark is None or called is None or not os.environ.get("TESTS_ONCE"):
        return
    ((parameter, project),) = mark.kwargs.items()
    others = {name: value for name, value in called.params.items() if name != parameter}
    release = called.params.get(parameter)
    source = source_of(mark.args, project, release) if isinstance(release, str) else None
    if source is None:
        return
    test = item.nodeid.partition("[")[0]
    first = _first.setdefault((test, repr(sorted(others.items())), source), str(release))
    if first != release:
        pytest.skip(f"{LEFT}: {project} {release} has the source of {first} for {', '.join(mark.args)}")


@functools.cache
def source_of(patches: tuple[str, ...], project: str, release: str) -> tuple[object, ...] | None:
    """Return what patches find in a release, `None` if the release cannot be had: the test says so."""
    from sources import fetch_release, fetch_source, git_sources

    try:
        if project in ("slime", "miles"):
            folder = fetch_source.fetch(project, release)
        else:
            folder = fetch_release.fetch(f"{project}=={release}")
    except (fetch_release.FetchError, git_sources.FetchError):
        return None
    return tuple(
        (
            *(verdict.patch, target.project, target.verdict, target.variant),
            tuple((found.site, found.holds, found.digest) for found in target.findings),
        )
        for verdict in overlay.plan(patches, site=str(folder)).verdicts
        if verdict.patch in patches  # and not what comes along
        for target in verdict.targets
    )
