"""What the tests of this folder share with those of the engine."""

from __future__ import annotations

from own_heap import own_heap, whole_heap

__all__ = ["own_heap", "whole_heap"]
