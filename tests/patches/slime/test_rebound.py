"""A function over the names of its module, a few of which are others."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from overlay.patches._rebound import rebound

SOURCE = """
factor, more = 2, 1

def scaled(value, times=3, *, plus=4):
    return value * times * factor + plus * more

def through(value):
    return scaled(value)
"""


@pytest.fixture
def module() -> Any:
    made = ModuleType("upstream")
    exec(SOURCE, made.__dict__)  # noqa: S102 -- the text above
    return made


def test_it_has_other_names_and_the_defaults_of_the_original(module: Any) -> None:
    assert rebound(module.scaled, module, factor=10)(5) == 5 * 3 * 10 + 4
    assert rebound(module.scaled, module, factor=10)(5, 1, plus=0) == 50


def test_the_module_and_its_other_functions_keep_theirs(module: Any) -> None:
    assert rebound(module.through, module, factor=10)(5) == module.scaled(5) == 34


def test_what_others_have_replaced_in_the_module_is_seen(module: Any) -> None:
    own = rebound(module.scaled, module, factor=10)
    module.more = 100  # also after the patch was put in place
    assert own(5) == 5 * 3 * 10 + 400
