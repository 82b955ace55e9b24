"""In bridge mode the model's configuration has the recomputation and the kind of loss that were asked for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(_seed: str) -> str:
    """Return which flag the model's configuration has not, empty if it has all.

    Megatron Bridge is stood in for: its configuration is Megatron's own, checked in `finalize` as there.
    """
    from overlay.compat.megatron_on_cpu import megatron

    with megatron():
        from megatron.core.transformer import TransformerConfig

        from overlay.compat.slime_on_cpu import import_slime

        @dataclass
        class Provider(TransformerConfig):
            def __post_init__(self) -> None:
                """Leave the checks to `finalize`."""

            def finalize(self) -> None:
                super().__post_init__()

            def provide(self, pre_process: Any = None, post_process: Any = None, vp_stage: Any = None) -> Any:
                return SimpleNamespace(config=self)

        class Bridge(ModuleType):
            class AutoBridge:
                @classmethod
                def from_hf_pretrained(cls, *_: Any, **__: Any) -> Any:
                    return cls()

                def to_megatron_provider(self, **_: Any) -> Any:
                    return Provider(num_layers=2, hidden_size=8, num_attention_heads=2)

        sys.modules["megatron.bridge"] = Bridge("megatron.bridge")
        sys.modules["slime_plugins"] = ModuleType("slime_plugins")
        sys.modules["slime_plugins.megatron_bridge"] = ModuleType("slime_plugins.megatron_bridge")
        module: Any = import_slime("model_provider")[0]
        module.patch_auto_bridge_hf_config = lambda bridge: bridge
        module.LinearForLastLayer = lambda **_options: None
        module.freeze_model_params = lambda *_: None
        unset = {
            "recompute_modules": None,
            "distribute_saved_activations": False,
            "context_parallel_size": 2,
        }
        full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
        plain = dict.fromkeys(full)
        modules = {"recompute_modules": ["core_attn", "layernorm"]}
        for flags in (
            {**unset, **full, "calculate_per_token_loss": True},
            {**unset, **plain, "recompute_granularity": "selective", "calculate_per_token_loss": False},
            {
                **unset,
                **plain,
                "recompute_granularity": "selective",
                **modules,
                "calculate_per_token_loss": True,
            },
            {**unset, **plain, "calculate_per_token_loss": False},
        ):
            for role in ("actor", "critic"):
                provide = module.get_model_provider_func(_arguments(**flags), role)
                config = provide(pre_process=True, post_process=False, vp_stage=None).config
                for name, value in flags.items():
                    wanted = ["core_attn"] if name == "recompute_modules" and value is None else value
                    # What is off may be None or False.
                    if (getattr(config, name) or None) != (wanted or None):
                        return f"{role}: {name} is {getattr(config, name)}, and {wanted} was asked for"
    return ""


def _arguments(**flags: Any) -> Any:
    return SimpleNamespace(
        megatron_to_hf_mode="bridge",
        hf_checkpoint="checkpoint",
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        expert_model_parallel_size=1,
        expert_tensor_parallel_size=1,
        sequence_parallel=False,
        variable_seq_lengths=False,
        only_train_params_name_list=None,
        freeze_params_name_list=None,
        **flags,
    )


CONTRACT = Contract(
    check=with_patches(wrong, "slime.bridge-flags"), before=("megatron.core", "ray", "tensordict")
)
