"""`--allgather-cp` is refused for a model that it would scramble the tokens of, and for no other."""

import itertools
from types import SimpleNamespace
from typing import Any

from overlay.compat.contracts.slime import contract, on_megatron

_ZIGZAG = ("Qwen3ForCausalLM", "Glm4MoeForCausalLM")
_MODELS = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", *_ZIGZAG)


@on_megatron("arguments")
def wrong(_seed: str, module: Any) -> str:
    """Return what is refused and should not be, or is not and should be."""
    module._set_default_megatron_args = lambda args: args
    for name, size, chosen in itertools.product(_MODELS, (1, 2), (False, True)):
        args = SimpleNamespace(allgather_cp=chosen, context_parallel_size=size, hf_checkpoint="h")
        args.critic_train_only, args.actor_num_nodes, args.actor_num_gpus_per_node = False, 1, 1
        config = SimpleNamespace(architectures=[name])
        module._megatron_parse_args = lambda args=args, **_: args
        module.AutoConfig = SimpleNamespace(from_pretrained=lambda *_, c=config, **__: c)
        try:
            module.megatron_parse_args(None)
            refused = False
        except ValueError as error:
            refused = "allgather-cp" in str(error)
        if refused != (chosen and size > 1 and name in _ZIGZAG):
            return f"{name}, context_parallel_size={size}, allgather_cp={chosen}: refused is {refused}"
    return ""


CONTRACT = contract(wrong, "slime.allgather-cp-models")
