"""slime's own rollout manager normalises rewards by prompt, as slime's helper does where there is one."""

from overlay.compat.contracts.slime import contract, on_megatron
from overlay.testing import as_without


@on_megatron()
def wrong(seed: str) -> str:
    """Return what is wrong with whole, trimmed and uneven groups, and with rollouts of several samples."""
    from overlay.compat.slime_on_cpu import reward_groups

    return reward_groups.wrong(seed)


@on_megatron()
def alike(seed: str) -> str:
    """Normalise as slime does where it groups rightly or has nothing to go by, and leave it to its user."""
    from overlay.compat.slime_on_cpu.reward_groups import left_as_it_is

    return as_without(left_as_it_is)(seed)


CONTRACT = contract(wrong, "slime.group-baseline", alike=alike)
