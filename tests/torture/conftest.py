"""What the tests of this folder share with those of the engine, and with those of ranks."""

from __future__ import annotations

from own_heap import own_heap, whole_heap
from warm_tests import warm_server

__all__ = ["own_heap", "warm_server", "whole_heap"]
