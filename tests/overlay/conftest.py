"""Fixtures of the engine, and a list of the sources that are parsed."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from engine_fixtures import enabled, engines, own_heap, upstream, whole_heap

__all__ = ["enabled", "engines", "own_heap", "upstream", "whole_heap"]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by each source that is parsed."""
    found: list[str] = []
    plain = ast.parse

    def parse(text: str, *more: Any, **named: Any) -> Any:
        found.append(text)
        return plain(text, *more, **named)

    monkeypatch.setattr(ast, "parse", parse)
    return found
