"""Advantages are those of the trained tokens alone, on one rank: what needs several is not seen here."""

from __future__ import annotations

import functools

from overlay.patch import Contract
from overlay.patches.slime.masked_gae import PATCH
from overlay.testing import with_patches


def wrong(seed: str, look: str = "wrong") -> str:
    """Return which advantages are others, with masked tokens and with none, with a KL penalty and without.

    `alike` looks at those of rollouts whose tokens are all trained, which slime estimates well.
    """
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        from overlay.compat.slime_on_cpu import masked_gae

        return str(getattr(masked_gae, look)(seed))


CONTRACT = Contract(
    check=with_patches(wrong, *PATCH.requires, PATCH.id),
    alike=functools.partial(wrong, look="alike"),
    before=("megatron.core", "ray", "tensordict"),
)
