"""Plans with several context parallel sizes in one micro-batch: not there yet.

Whatever runs a plan takes such plans already (`tests/distributed/proof_cases.py` draws them).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.patches._dynamic_cp.plan import Plan


def plan_mixed(lengths: Sequence[int], ranks: int, cap: int, budget: int | None = None) -> Plan:
    """Refuse. Raises `NotImplementedError`."""
    raise NotImplementedError("OVERLAY_DCP=mixed has no planner yet: set OVERLAY_DCP=uniform")
