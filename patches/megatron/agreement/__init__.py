"""`megatron.agreement`: ranks compare their patches as soon as Megatron's process groups exist.

It mends nothing. It is there so that a job in which some ranks are patched and others are not, or on other
sources, ends when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Calls, Patch, one_target, replaced, variant

_STATE = "megatron.core.parallel_state"
EFFECT = effect(__name__, "comparison", did="made", always=True)


def make_memory_buffer(original: Callable[[], None], module: ModuleType) -> Callable[[], None]:
    """Make the last step of `initialize_model_parallel` compare the ranks.

    Contract: the original runs first and its result is returned. Raises `AgreementError` on every rank if the
    ranks differ.
    """

    def _set_global_memory_buffer() -> None:
        original()
        from overlay.compat.agreement import is_distributed

        if is_distributed():
            import overlay

            overlay.agree()
            EFFECT.changed += 1

    return _set_global_memory_buffer


PATCH = Patch(
    id="megatron.agreement",
    summary="Compare the patches of all ranks when the model parallel state has been initialised",
    why=(
        "A job whose ranks run different patches, or the same patches on different sources, trains on "
        "without a word: upstream knows nothing of patches. When Megatron has made its process groups, all "
        "ranks compare what is patched and on which sources, and every one of them raises if they differ."
    ),
    changes=("safety",),
    met="Any job of more than one rank. It changes no number: ranks that differ stop before they train.",
    evidence=(
        "It replaces nothing that computes. Jobs of drawn import orders, delays and faults show that healthy "
        "ranks go on and differing ones are named (tests/overlay/records/test_drawn_jobs.py)."
    ),
    upstream=("verl-project/verl-ascend-recipe#112", "NVIDIA-NeMo/RL#3754", "vllm-project/vllm#27940"),
    companion=True,
    without="ranks with other patches or other sources train on without a word",
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(f"{_STATE}:_set_global_memory_buffer", make_memory_buffer),
            Calls(site=f"{_STATE}:initialize_model_parallel", callee="_set_global_memory_buffer", last=True),
        ),
    ),
)
