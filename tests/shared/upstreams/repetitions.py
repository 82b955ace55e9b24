"""What is left to the nightly run: repetitions on another release, and cases that others stand for by day.

A file whose tests run on several releases says `by_variant(PATCH..., PARAMETER=PROJECT)`. With `TESTS_ONCE`
in the environment, as `scripts/test` sets it for a whole run by day, a test runs once for each variant of the
patches, on the last of its releases that has it: the others are left out.

A file or a test says `nightly(REASON, PARAMETER=(VALUE...))` of the values of a parameter that others stand
for by day: the same code, on more ranks or on another release, at a price of minutes. Without a parameter the
whole test is left.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

import overlay

#: What a reason begins with (`scripts/testing/suite.py` counts these).
LEFT = "left to the nightly run"

#: By test and its other parameters: the releases on which it would run, in order.
_releases: dict[tuple[object, ...], list[str]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test to the nightly run if that is what it says, or if another release stands for its own."""
    if not os.environ.get("TESTS_ONCE"):
        return
    if reason := _left(item):
        pytest.skip(f"{LEFT}: {reason}")
    mark = item.get_closest_marker("by_variant")
    if mark is None or (place := _place(item, mark)) is None:
        return
    if not _releases:
        for other in item.session.items:
            told = other.get_closest_marker("by_variant")
            if told is not None and (there := _place(other, told)) is not None and not _left(other):
                _releases.setdefault(there[0], []).append(there[1])
    ((_, project),) = mark.kwargs.items()
    test, release = place
    variant = variant_of(mark.args, project, release)
    if variant is None:
        return
    last = next(one for one in reversed(_releases[test]) if variant_of(mark.args, project, one) == variant)
    if last != release:
        pytest.skip(f"{LEFT}: {project} {last} has the variant of {release} of {', '.join(mark.args)}")


def _left(item: pytest.Item) -> str:
    """Return the reason that a test itself gives why it is left out by day, empty if it is not."""
    params: Any = getattr(getattr(item, "callspec", None), "params", {})
    for left in item.iter_markers("nightly"):
        if not left.kwargs or any(params.get(name) in values for name, values in left.kwargs.items()):
            return str(left.args[0])
    return ""


def _place(item: pytest.Item, mark: pytest.Mark) -> tuple[tuple[object, ...], str] | None:
    """Return the test with its other parameters, and its release, `None` if it is of no release."""
    params: Any = getattr(getattr(item, "callspec", None), "params", {})
    ((parameter, _),) = mark.kwargs.items()
    if not isinstance(release := params.get(parameter), str):
        return None
    others = {name: value for name, value in params.items() if name != parameter}
    return (item.nodeid.partition("[")[0], repr(sorted(others.items()))), release


@functools.cache
def variant_of(patches: tuple[str, ...], project: str, release: str) -> tuple[object, ...] | None:
    """Return what is decided on patches in a release, `None` if it cannot be had: the test says so."""
    from sources import fetch_release, git_sources

    try:
        if project in ("slime", "miles"):
            folder = git_sources.fetch(project, release)
        else:
            folder = fetch_release.fetch(f"{project}=={release}")
    except (fetch_release.FetchError, git_sources.FetchError):
        return None
    return tuple(
        (verdict.patch, target.project, target.verdict, target.variant)
        for verdict in overlay.plan(patches, site=str(folder)).verdicts
        if verdict.patch in patches  # and not what comes along
        for target in verdict.targets
    )
