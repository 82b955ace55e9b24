"""Orders of import, enable, disable, reload, import by alias and second import: right, or reported.

Some of them, drawn anew in each run; `scripts/torture orders` tries all up to a length of five.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import random
import weakref

import pytest
from checks import SEED
from forked import in_a_child
from order_world import Subject, what_came

from overlay.runtime.engine import Engine

LETTERS = "IEDRAX"

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def test_every_short_order_and_some_long_ones(subject: Subject) -> None:
    print(f"OVERLAY_TEST_SEED={SEED}")
    short = ["".join(word) for length in (1, 2) for word in itertools.product(LETTERS, repeat=length)]
    draw = random.Random(f"{SEED}/orders")
    long = ["".join(draw.choices(LETTERS, k=length)) for length in (3, 4, 5) for _ in range(12)]
    came = {word: what_came(word, subject) for word in dict.fromkeys([*short, *long])}
    assert {word: said for word, (kind, said) in came.items() if kind == "wrong"} == {}
    assert sum(kind == "right" for kind, _ in came.values()) > 15


@pytest.mark.parametrize("order", ["ARE", "AXE", "AXIE", "IAEDRE", "AERDE", "ADRE", "AERRDE", "AERDRE"])
def test_what_an_earlier_import_has_given_away_is_reported(subject: Subject, order: str) -> None:
    kind, said = what_came(order, subject)
    assert kind == "reported", said


def test_nobody_holds_what_was_enabled_once_it_is_disabled(subject: Subject) -> None:
    def often() -> dict[str, bool]:
        engine = Engine(lambda: subject.patches, table=subject.table)
        importlib.import_module(subject.module)
        engine.enable()
        session = weakref.ref(engine._session)
        engine.disable()
        gc.collect()
        return {"freed": session() is None}

    assert in_a_child(often) == {"freed": True}


def test_what_is_wrong_is_seen(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of this file, judged: with an engine that forgets to restore, or patches half."""
    monkeypatch.setattr("overlay.runtime.session.Session.close", lambda self: None)
    assert what_came("AE", subject)[0] == "wrong"
    monkeypatch.undo()
    monkeypatch.setattr("overlay.runtime.sites._rebind_aliases", lambda sites: None)
    assert what_came("AE", subject)[0] == "wrong"
