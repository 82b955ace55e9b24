"""What the garbage collector knows, also of a heap that somebody froze."""

from __future__ import annotations

import gc

import pytest

from overlay.model.collector import FROZEN_BY_PYTHON, modules_with_functions


@pytest.mark.usefixtures("whole_heap")
def test_modules_of_which_there_are_functions_are_known() -> None:
    held = {"__name__": "once.there"}
    exec("def f(): ...", held)  # noqa: S102
    assert modules_with_functions(frozenset({"once.there", "never.there"})) == {"once.there"}
    gc.freeze()
    try:
        if gc.get_freeze_count() > FROZEN_BY_PYTHON:
            assert modules_with_functions(frozenset({"never.there"})) == {"never.there"}
    finally:
        gc.unfreeze()
