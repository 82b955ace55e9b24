"""An exception at some steps of the engine, drawn anew in each run; `scripts/torture faults` takes all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from checks import SEED
from fault_steps import ERRORS, SCENES, judge, steps
from forked import in_a_child
from order_world import Subject

#: What puts in place and takes out. (Deciding is one step to these: whatever it raises is a verdict.)
FILES = tuple(f"runtime/{name}.py" for name in ("session", "entry", "engine", "sites", "search"))
DRAWN = 12

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def log(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged may raise, too."""
    monkeypatch.setenv("OVERLAY_LOG", "info")


def reached(scene: str, subject: Subject) -> list[tuple[str, int, int]]:
    found = in_a_child(lambda: {"steps": [[*place, count] for place, count in steps(scene, subject).items()]})
    return [(file, line, count) for file, line, count in found["steps"] if file.endswith(FILES)]


@pytest.mark.parametrize("scene", SCENES)
def test_all_or_nothing_and_said(subject: Subject, scene: str) -> None:
    print(f"OVERLAY_TEST_SEED={SEED}")
    draw = random.Random(f"{SEED}/{scene}")
    for file, line, count in draw.sample(reached(scene, subject), DRAWN):
        time, kind = draw.choice([1, count]), draw.choice(list(ERRORS))
        found = in_a_child(lambda: judge(scene, subject, (file, line), time, kind))  # noqa: B023
        assert found["wrong"] == [], f"{kind} at {Path(file).name}:{line}, time {time}"


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("scene", ["enable", "import"])
def test_an_exception_just_after_everything_was_put_in_place(
    subject: Subject, scene: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there is to undo must be known before."""
    from overlay.runtime.sites import put

    def interrupted(sites: list[Any], *, first: bool) -> None:
        put(sites, first=first)
        monkeypatch.undo()
        raise ERRORS[kind]("injected")

    monkeypatch.setattr("overlay.runtime.session.put", interrupted)
    found = in_a_child(lambda: judge(scene, subject, ("", 0), 0, kind))
    assert found["wrong"] == []


def test_what_is_wrong_is_seen(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of this file, judged: with an engine that puts nothing back."""
    (place, *_) = [
        (file, line) for file, line, _ in reached("enable", subject) if file.endswith("runtime/search.py")
    ]
    monkeypatch.setattr("overlay.runtime.entry.take_out", lambda sites: [])
    assert in_a_child(lambda: judge("enable", subject, place, 1, "error"))["wrong"]
