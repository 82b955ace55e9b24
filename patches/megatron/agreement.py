"""`megatron.agreement`: ranks compare their patches as soon as Megatron's process groups exist.

It mends nothing. It is there so that a job in which some ranks are patched and others are not, or on other
sources, ends when it starts.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Calls, Known, Patch, Removal, Replacement, Target, Variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

ID = "megatron.agreement"


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

    return _set_global_memory_buffer


_STATE = "megatron.core.parallel_state"
_BUFFER = f"{_STATE}:_set_global_memory_buffer"

PATCH = Patch(
    id=ID,
    revision=1,
    summary="Compare the patches of all ranks when the model parallel state has been initialised",
    why=(
        "A job whose ranks run different patches, or the same patches on different sources, trains on "
        "without a word: upstream knows nothing of patches. When Megatron has made its process groups, all "
        "ranks compare what is patched and on which sources, and every one of them raises if they differ."
    ),
    upstream=("verl-project/verl-ascend-recipe#112", "NVIDIA-NeMo/RL#3754", "vllm-project/vllm#27940"),
    companion=True,
    without="ranks with other patches or other sources train on without a word",
    remove=Removal(
        version=None,
        when="overlay is not used",
        test="tests/real/test_megatron_agreement.py::test_megatron_alone_does_not_notice",
    ),
    targets=(
        Target(
            project=MEGATRON,
            variants=(
                Variant(
                    name="0.12",
                    versions=">=0.12.0.dev0,<0.21.0.dev0",
                    # The seam. The groups exist when it is called, and no rank leaves without a call.
                    shape=(
                        Known(site=_BUFFER, digests=("126f72b4fc54",)),
                        Calls(
                            site=f"{_STATE}:initialize_model_parallel",
                            callee="_set_global_memory_buffer",
                            last=True,
                        ),
                    ),
                    replacements=(Replacement(site=_BUFFER, make=make_memory_buffer),),
                ),
            ),
        ),
    ),
)
