"""slime's own rollout manager normalises rewards by prompt, as slime's helper does where there is one."""

from __future__ import annotations

import contextlib

from overlay.patch import Contract
from overlay.testing import with_patches, without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def wrong(seed: str) -> str:
    """Return what is wrong with whole, trimmed and uneven groups, and with rollouts of several samples."""
    with _slime():
        from overlay.compat.slime_on_cpu import reward_groups

        return reward_groups.wrong(seed)


def alike(seed: str) -> str:
    """Normalise as slime does where it groups rightly or has nothing to go by, and leave it to its user."""
    with _slime():
        from overlay.compat.slime_on_cpu.reward_groups import left_as_it_is

        ours, theirs = without(lambda: left_as_it_is(seed))
        return "" if ours == theirs else f"{ours}, and without the patch {theirs}"


@contextlib.contextmanager
def _slime() -> Iterator[None]:
    """Let slime be imported and called."""
    import overlay.compat.megatron_on_cpu  # noqa: F401 -- before Megatron
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.no_triton import no_triton
    from overlay.compat.slime_on_cpu import stand_in

    with no_triton(), cuda_on_cpu():
        stand_in()
        yield


CONTRACT = Contract(
    check=with_patches(wrong, "slime.group-baseline"),
    alike=alike,
    before=("megatron.core", "ray", "tensordict"),
)
