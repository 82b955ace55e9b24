"""The stand-in for Triton: there as long as it is needed, and only where Triton is not."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from overlay.compat.no_triton import no_triton


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_it_can_be_imported_and_goes_again() -> None:
    with no_triton():
        import triton
        import triton.language as tl

        @triton.jit  # type: ignore[untyped-decorator]
        def kernel(size: tl.constexpr) -> None:
            pass

        @triton.autotune(configs=[triton.Config({"size": 1})], key=["size"])  # type: ignore[untyped-decorator]
        def tuned() -> int:
            return 3

        assert tuned() == 3
        assert not hasattr(triton, "__nothing__")
        with no_triton():  # which is there now
            pass
        assert sys.modules["triton"] is triton
    assert "triton" not in sys.modules
    assert "triton.language" not in sys.modules


def test_what_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("triton")
    monkeypatch.setitem(sys.modules, "triton", real)
    with no_triton():
        assert sys.modules["triton"] is real
    assert sys.modules["triton"] is real
