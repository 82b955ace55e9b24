"""Replacements that are made of a function which gets the original."""

from __future__ import annotations

import inspect
import pickle
from typing import TYPE_CHECKING, Any

from overlay.patch import around, replaced

if TYPE_CHECKING:
    from fake_upstream import Engines, Upstream


@around
def doubled(original: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    return 2 * original(value, *args, **kwargs)


def test_a_function_around_the_original_has_its_signature(upstream: Upstream, enabled: Engines) -> None:
    engine = enabled(upstream.patch({}, replaced("fakeup.core:scale", doubled)), strict=True)
    core = upstream.load()
    assert (core.scale(2), core.scale(value=2, factor=3)) == (8, 12)
    assert str(inspect.signature(core.scale)) == "(value, factor=2)"
    assert pickle.loads(pickle.dumps(core.scale)) is core.scale  # noqa: S301 -- ours
    engine.disable()
    assert core.scale(2) == 4
