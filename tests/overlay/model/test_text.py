"""Words that messages are made of."""

from __future__ import annotations

import pytest

from overlay.model.text import counted


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("patch", "2 patches"),
        ("set of groups", "2 sets of groups"),
        ("tensor that stayed behind", "2 tensors that stayed behind"),
        ("loss in float64", "2 losses in float64"),
    ],
)
def test_the_noun_of_a_phrase_is_in_the_plural(one: str, two: str) -> None:
    assert (counted(1, one), counted(2, one)) == (f"1 {one}", two)
