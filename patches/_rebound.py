"""A function of an upstream that runs as it is, over the names of its module, a few of which are others.

For what cannot be replaced where it stands: it is compiled or a class, or others of the module keep it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def rebound(function: Callable[..., Any], module: ModuleType, **names: Any) -> Callable[..., Any]:
    """Return a function of `module`, no closure, over `names` and the module's as they are at each call."""
    from types import FunctionType

    told: Any = function

    def call(*given: Any, **named: Any) -> Any:
        made = FunctionType(told.__code__, {**vars(module), **names}, told.__name__, told.__defaults__)
        made.__kwdefaults__ = told.__kwdefaults__
        # A compiler would take the function's names for those of its module, which it reads by itself.
        # It may be there in part: a thread imports it.
        disable: Any = getattr(sys.modules.get("torch._dynamo"), "disable", None)
        return (made if disable is None else disable(made))(*given, **named)

    return call
