"""`slime.allgather-cp-models`: `--allgather-cp` is refused for models whose tokens it would scramble.

The function that compares the arguments with the model's configuration is wrapped: it is called once, before
anything is started.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Absent, Patch, Present, one_target, replaced, variant

_ARGUMENTS = "slime.backends.megatron_utils.arguments"
_REDISTRIBUTE = "slime.backends.megatron_utils.loss:_allgather_cp_redistribute"
EFFECT = effect(__name__, "model", did="refused", always=True)


#: Models with sparse attention, whose layers gather a whole sequence: for these slime splits it in order.
IN_ORDER = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")


def make_validate(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the comparison of arguments with the model's configuration.

    It raises a `ValueError` for a model that allgather context parallelism is not for.
    """

    def _hf_validate_args(args: Any, hf_config: Any) -> None:
        names = getattr(hf_config, "architectures", None) or ()
        # The option is slime's; what parses only Megatron's arguments does not know it.
        split = getattr(args, "allgather_cp", False) and args.context_parallel_size > 1
        if split and not any(name in IN_ORDER for name in names):
            EFFECT.changed += 1
            msg = (
                "--allgather-cp splits sequences in order, and the layers of "
                f"{', '.join(names) or 'this model'} expect the two halves of each rank (zigzag): it is for "
                f"{' and '.join(IN_ORDER)}. Leave it out"
            )
            raise ValueError(msg)
        original(args, hf_config)

    return _hf_validate_args


PATCH = Patch(
    id="slime.allgather-cp-models",
    summary="--allgather-cp is refused for models whose tokens it would scramble",
    why=(
        "With --allgather-cp each context parallel rank gets one piece of a sequence, in order. That is for "
        "models with sparse attention (DeepSeek-V3.2, GLM-5), whose layers gather the whole sequence. All "
        "others attend to the first and the last piece of a zigzag, so that positions and masks are those of "
        "other tokens, and slime 0.2.3 and 0.2.4 train them so without a word. With the patch they are "
        "refused before anything is started, as in slime 0.3. Who has given another model such layers leaves "
        "the patch out."
    ),
    changes=("safety",),
    met="--allgather-cp with a context parallel size above 1, and a model without sparse attention.",
    upstream=("THUDM/slime#1891",),
    evidence=(
        "slime's commit 82007fa (#1891, in 0.3.0) refuses the same models with an error, since the others "
        "would have their tokens scrambled."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.2.3",
            replaced(f"{_ARGUMENTS}:_hf_validate_args", make_validate),
            Absent(site=f"{_ARGUMENTS}:_validate_allgather_cp_supported"),
            Present(site=_REDISTRIBUTE),
        ),
        tells=(
            _REDISTRIBUTE,
            f"{_ARGUMENTS}:_validate_allgather_cp_supported",
        ),
    ),
)
