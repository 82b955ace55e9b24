"""slime's own rollout manager normalises rewards by prompt, and counts a rollout as its loss does."""

from __future__ import annotations

import contextlib

from overlay.patch import Contract
from overlay.patches.slime.group_baseline import PATCH
from overlay.testing import assert_applied, enable, without

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def check(seed: str) -> str:
    """Give it whole, trimmed and uneven groups, and rollouts of several samples."""
    enable(PATCH.id)
    with _slime():
        from overlay.compat.slime_on_cpu.reward_groups import wrong

        found = wrong(seed)
        assert_applied(PATCH.id)
        return found


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


CONTRACT = Contract(check=check, alike=alike, before=("megatron.core", "ray", "tensordict"))
