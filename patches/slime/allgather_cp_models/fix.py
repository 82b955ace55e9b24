"""What refuses allgather context parallelism for a model whose layers expect another order of tokens."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

#: Models with sparse attention, whose layers gather a whole sequence: for these slime splits it in order.
IN_ORDER = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")


def make_validate(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the comparison of arguments with the model's configuration.

    It raises a `ValueError` for a model that allgather context parallelism is not for.
    """
    from overlay.patches.slime.allgather_cp_models.effect import EFFECT

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
