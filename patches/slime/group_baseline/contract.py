"""slime's own rollout manager normalises rewards by prompt, and counts a rollout as its loss does."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.patches.slime.group_baseline import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Give it whole, trimmed and uneven groups, and rollouts of several samples."""
    import overlay.compat.megatron_on_cpu  # noqa: F401 -- before Megatron
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.no_triton import no_triton
    from overlay.compat.slime_on_cpu import stand_in

    enable(PATCH.id)
    with no_triton(), cuda_on_cpu():
        stand_in()
        from overlay.compat.slime_on_cpu.reward_groups import wrong

        found = wrong(seed)
        assert_applied(PATCH.id)
        return found


CONTRACT = Contract(check=check, before=("megatron.core", "ray", "tensordict"))
