"""Stand-ins for Triton, so that a Megatron that imports it without a guard imports where it is missing.

Of 0.18 and later. Nothing that is made here is ever run: it decorates kernels, and names types.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from typing import Any

from overlay.compat.names import Names


class _Thing:
    """Can be made, and is never used."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        pass


class _Triton(Names):
    """Triton, of which nothing is ever called but decorators."""

    def made(self, name: str) -> Any:
        if name in ("jit", "autotune", "heuristics"):
            return lambda function=None, **_options: function if callable(function) else lambda made: made
        return _Thing


@contextlib.contextmanager
def no_triton() -> Iterator[None]:
    """Let Triton be imported, if it is not there, for as long as the context lasts.

    To be entered before Megatron is imported. What was imported in between keeps its references.
    """
    if "triton" in sys.modules or importlib.util.find_spec("triton") is not None:
        yield
        return

    # It looks for Triton when it is imported, and would take the stand-in for it.
    import torch._dynamo  # noqa: F401

    language = _Triton("triton.language")
    triton = _Triton("triton")
    # Older than anything that Megatron would use on a device.
    vars(triton).update(__version__="3.0.0", language=language)
    for module in (triton, language):
        module.__spec__ = ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for module in (triton, language):
            sys.modules.pop(module.__name__, None)
