"""What is left to the nightly run: repetitions on another release, and cases that others stand for by day.

A file whose tests run on several releases says `by_source(PATCH..., PARAMETER=PROJECT)`. With `TESTS_ONCE` in
the environment, as `scripts/test` sets it for a whole run by day, a test runs once for each source: a release
on which the patches are decided on alike, by variant and by every digest that is looked at, is left out.

A file or a test says `nightly(REASON, PARAMETER=(VALUE...))` of the values of a parameter that others stand
for by day: the same code, on more ranks or on another release, at a price of minutes.
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
    """Leave a test to the nightly run if that is what it says, or if it runs on the same source elsewhere."""
    if not os.environ.get("TESTS_ONCE"):
        return
    for left in item.iter_markers("nightly"):
        params: Any = getattr(getattr(item, "callspec", None), "params", {})
        if any(params.get(name) in values for name, values in left.kwargs.items()):
            pytest.skip(f"{LEFT}: {left.args[0]}")
    mark = item.get_closest_marker("by_source")
    called: Any = getattr(item, "callspec", None)
    if mark is None or called is None:
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
