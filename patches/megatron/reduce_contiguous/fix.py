"""What takes the place of Megatron's sum over tensor parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_reduce(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `_reduce`: the sum over the group, whatever the strides of the input.

    Upstream reduces a contiguous copy and returns what it copied. Given a contiguous tensor it makes no copy.
    """
    from overlay.patches.megatron.reduce_contiguous.effect import EFFECT

    def _reduce(input_: Any, group: Any) -> Any:
        given = input_.contiguous()
        if given is not input_:
            EFFECT.changed += 1
        return original(given, group)

    return _reduce


def make_reduce_0_12(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the same for 0.12, where the group is Megatron's own."""
    from overlay.patches.megatron.reduce_contiguous.effect import EFFECT

    def _reduce(input_: Any) -> Any:
        given = input_.contiguous()
        if given is not input_:
            EFFECT.changed += 1
        return original(given)

    return _reduce
