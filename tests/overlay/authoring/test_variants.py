"""`known`, `replaced` and `variant` say the records of a variant, with each site named once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.patch import Absent, Known, Present, Replacement, Variant, known, replaced, variant

if TYPE_CHECKING:
    from types import ModuleType


def make(original: Any, module: ModuleType) -> Any:
    return original


def test_parts_become_the_shape_and_the_replacements_in_their_order() -> None:
    assert variant(
        "1",
        ">=1",
        replaced("m:f", make, "a" * 12, "b" * 12, adds=("key",)),
        known("m:g", "c" * 12),
        Present(site="n"),
        replaced("m:h", make, new=True),
    ) == Variant(
        name="1",
        versions=">=1",
        shape=(
            Known(site="m:f", digests=("a" * 12, "b" * 12)),
            Known(site="m:g", digests=("c" * 12,)),
            Present(site="n"),
            Absent(site="m:h"),
        ),
        replacements=(
            Replacement(site="m:f", make=make, adds=("key",)),
            Replacement(site="m:h", make=make, new=True),
        ),
    )


def test_what_does_not_apply_has_a_verdict_and_a_reason() -> None:
    assert variant("0", "<1", Absent(site="m"), verdict="not-affected", reason="it is not there") == Variant(
        name="0", versions="<1", verdict="not-affected", shape=(Absent(site="m"),), reason="it is not there"
    )
