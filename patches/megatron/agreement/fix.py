"""What compares the ranks, at the end of `initialize_model_parallel`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


def make_memory_buffer(original: Callable[[], None], module: ModuleType) -> Callable[[], None]:
    """Make the last step of `initialize_model_parallel` compare the ranks.

    Contract: the original runs first and its result is returned. Raises `AgreementError` on every rank if the
    ranks differ.
    """
    from overlay.patches.megatron.agreement.effect import EFFECT

    def _set_global_memory_buffer() -> None:
        original()
        from overlay.compat.agreement import is_distributed

        if is_distributed():
            import overlay

            overlay.agree()
            EFFECT.changed += 1

    return _set_global_memory_buffer
