"""`--allgather-cp` is refused for a model that it would scramble the tokens of, and for no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches

_IN_ORDER = {"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"}
_ZIGZAG = {"Qwen3ForCausalLM", "Glm4MoeForCausalLM"}


def wrong(_seed: str) -> str:
    """Return what is refused and should not be, or is not and should be; empty if nothing."""
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        from overlay.compat.slime_on_cpu import import_slime

        module: Any = import_slime("arguments")[0]
        module._set_default_megatron_args = lambda args: args
        for name in _IN_ORDER | _ZIGZAG:
            for size in (1, 2):
                for chosen in (False, True):
                    args = SimpleNamespace(allgather_cp=chosen, context_parallel_size=size, hf_checkpoint="h")
                    args.critic_train_only, args.actor_num_nodes, args.actor_num_gpus_per_node = False, 1, 1
                    config = SimpleNamespace(architectures=[name])
                    module._megatron_parse_args = lambda args=args, **_: args
                    module.AutoConfig = SimpleNamespace(from_pretrained=lambda *_, c=config, **__: c)
                    try:
                        module.megatron_parse_args(None)
                        refused = ""
                    except ValueError as error:
                        refused = str(error)
                    scrambled = chosen and size > 1 and name in _ZIGZAG
                    if scrambled != ("allgather-cp" in refused):
                        what = "refused" if refused else "not refused"
                        return f"{name} with context_parallel_size={size}, allgather_cp={chosen} is {what}"
    return ""


CONTRACT = Contract(
    check=with_patches(wrong, "slime.allgather-cp-models"),
    before=("megatron.core", "ray", "tensordict", "transformers"),
)
