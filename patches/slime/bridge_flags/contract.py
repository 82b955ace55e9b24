"""In bridge mode the model's configuration has the recomputation and the kind of loss that were asked for."""

import itertools
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from overlay.compat.contracts.slime import contract, on_megatron


@on_megatron()
def wrong(_seed: str) -> str:
    """Return which flag the model's configuration has not. Megatron Bridge's is stood in for."""
    from megatron.core.transformer import TransformerConfig

    from overlay.compat.slime_on_cpu import import_slime

    @dataclass
    class Provider(TransformerConfig):
        def __post_init__(self) -> None:
            """Leave the checks to `finalize`."""

        def finalize(self) -> None:
            super().__post_init__()

        def provide(self, **_parts: Any) -> Any:
            return SimpleNamespace(config=self)

    class Bridge:
        @staticmethod
        def from_hf_pretrained(*_: Any, **__: Any) -> Any:
            return Bridge()

        def to_megatron_provider(self, **_: Any) -> Any:
            return Provider(num_layers=2, hidden_size=8, num_attention_heads=2)

    for name in ("megatron.bridge", "slime_plugins", "slime_plugins.megatron_bridge"):
        sys.modules[name] = ModuleType(name)
    vars(sys.modules["megatron.bridge"])["AutoBridge"] = Bridge
    module: Any = import_slime("model_provider")[0]
    module.patch_auto_bridge_hf_config = lambda bridge: bridge
    module.LinearForLastLayer = lambda **_options: None
    module.freeze_model_params = lambda *_: None
    # Granularity, method, layers and modules of the recomputation, and whether the loss is per token.
    recompute = (f"recompute_{name}" for name in ("granularity", "method", "num_layers", "modules"))
    names = [*recompute, "calculate_per_token_loss"]
    cases = (
        ("full", "uniform", 1, None, True),
        ("selective", None, None, None, False),
        ("selective", None, None, ["core_attn", "layernorm"], True),
        (None, None, None, None, False),
    )
    sizes = ("tensor_model", "pipeline_model", "expert_model", "expert_tensor")
    unset = ("sequence_parallel", "variable_seq_lengths", "only_train_params_name_list")
    plain = {**{f"{one}_parallel_size": 1 for one in sizes}, **dict.fromkeys(unset)}
    plain |= {"megatron_to_hf_mode": "bridge", "hf_checkpoint": "here", "freeze_params_name_list": None}
    for case, role in itertools.product(cases, ("actor", "critic")):
        flags: dict[str, Any] = dict(zip(names, case, strict=True))
        flags |= {"distribute_saved_activations": False, "context_parallel_size": 2}
        provide = module.get_model_provider_func(SimpleNamespace(**plain, **flags), role)
        config = provide(pre_process=True, post_process=False, vp_stage=None).config
        for name, value in flags.items():
            wanted = ["core_attn"] if name == "recompute_modules" and value is None else value
            # What is off may be None or False.
            if (getattr(config, name) or None) != (wanted or None):
                return f"{role}: {name} is {getattr(config, name)}, and {wanted} was asked for"
    return ""


CONTRACT = contract(wrong, "slime.bridge-flags")
