"""The same partitions as without the patch, in less than half the calls."""

from functools import partial

from overlay.compat.slime_on_cpu import balancing
from overlay.patch import Contract

CONTRACT = Contract(check=partial(balancing.check, "slime"))
