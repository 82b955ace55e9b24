"""The same partitions as without the patch, in less than half the calls."""

from __future__ import annotations

import importlib

from overlay.compat.slime_on_cpu import balancing, stand_in
from overlay.patch import Contract
from overlay.testing import assert_applied, enable, without


def check(seed: str) -> str:
    """Compare what is made of drawn and of odd values with what this very miles makes of them alone."""
    stand_in("miles")
    enable("miles.fast-partitioner")
    module = importlib.import_module("miles.utils.seqlen_balancing")
    assert_applied("miles.fast-partitioner")
    return balancing.compared(*without(lambda: balancing.look(module, seed)))


CONTRACT = Contract(check=check)
