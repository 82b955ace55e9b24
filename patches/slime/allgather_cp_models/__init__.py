"""`slime.allgather-cp-models`: `--allgather-cp` is refused for models whose tokens it would scramble."""

from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Absent, Patch, Present, around, one_target, replaced, variant

_ARGUMENTS = "slime.backends.megatron_utils.arguments"
_REDISTRIBUTE = "slime.backends.megatron_utils.loss:_allgather_cp_redistribute"
_CURE = f"{_ARGUMENTS}:_validate_allgather_cp_supported"
EFFECT = effect(__name__, "model", did="refused", always=True)
#: Models with sparse attention, whose layers gather a whole sequence: for these slime splits it in order.
IN_ORDER = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")


@around
def validate(original: Any, args: Any, hf_config: Any) -> None:
    """Refuse the option before slime compares arguments with the model, once, before it starts anything."""
    names = getattr(hf_config, "architectures", None) or ()
    # The option is slime's; what parses only Megatron's arguments does not know it.
    split = getattr(args, "allgather_cp", False) and args.context_parallel_size > 1
    if split and not any(name in IN_ORDER for name in names):
        EFFECT.changed += 1
        raise ValueError(
            "--allgather-cp splits sequences in order, and the layers of "
            f"{', '.join(names) or 'this model'} expect the two halves of each rank (zigzag): it is for "
            f"{' and '.join(IN_ORDER)}. Leave it out"
        )
    original(args, hf_config)


PATCH = Patch(
    id="slime.allgather-cp-models",
    summary="--allgather-cp is refused for models whose tokens it would scramble",
    why="With --allgather-cp each context parallel rank gets one piece of a sequence, in order, as layers "
    "with sparse attention expect (DeepSeek-V3.2, GLM-5). All others expect zigzag pieces, and slime 0.2.3 "
    "and 0.2.4 silently train them on scrambled tokens. With the patch the job is refused at its start. "
    "Leave it out for another model that you gave such layers.",
    changes=("safety",),
    met="--allgather-cp with a context parallel size above 1, and a model without sparse attention.",
    upstream=("THUDM/slime#1891",),
    evidence="slime's commit 82007fa (in 0.3.0) refuses the same models.",
    targets=one_target(
        SLIME,
        variant(
            "0.2.3",
            replaced(f"{_ARGUMENTS}:_hf_validate_args", validate),
            Absent(site=_CURE),
            Present(site=_REDISTRIBUTE),
        ),
        tells=(_REDISTRIBUTE, _CURE),
    ),
)
