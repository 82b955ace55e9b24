"""slime's own rollout manager normalises rewards by prompt, and counts a rollout as its loss does."""

from __future__ import annotations

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong with whole, trimmed and uneven groups, and with rollouts of several samples."""
    import overlay.compat.megatron_on_cpu  # noqa: F401 -- before Megatron
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.no_triton import no_triton
    from overlay.compat.slime_on_cpu import stand_in

    with no_triton(), cuda_on_cpu():
        stand_in()
        from overlay.compat.slime_on_cpu import reward_groups

        return reward_groups.wrong(seed)


CONTRACT = Contract(
    check=with_patches(wrong, "slime.group-baseline"), before=("megatron.core", "ray", "tensordict")
)
