"""`megatron.offloaded-weights`: an optimizer offloaded to the CPU steps from the weights that are loaded."""

from functools import wraps
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._rebound import rebound

_SITE = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer._copy_model_params_to_main_params"
_HYBRID = "megatron.core.optimizer.cpu_offloading.hybrid_optimizer:HybridDeviceOptimizer"
EFFECT = effect(__name__, "load of weights", did="copied to the CPU after", always=True)


def make_copy(original: Any, module: Any) -> Any:
    """Copy weights to main weights as if nothing were offloaded, and what was copied to its copies."""
    on_device = rebound(original, module, HybridDeviceOptimizer=())  # of which nothing is an instance

    def _copy_model_params_to_main_params(self: Any, *args: Any, **named: Any) -> None:
        settings = self.ddp_config
        sharded = getattr(settings, "use_megatron_fsdp", False) or getattr(settings, "use_custom_fsdp", False)
        if sharded or not isinstance(self.optimizer, module.HybridDeviceOptimizer):
            original(self, *args, **named)
            return
        on_device(self, *args, **named)
        for weight, own in self.optimizer.param_to_inner_param.items():
            if own is not weight:
                own.data.copy_(weight.data)
        EFFECT.changed += 1

    return wraps(original)(_copy_model_params_to_main_params)


PATCH = Patch(
    id="megatron.offloaded-weights",
    summary="An optimizer offloaded to the CPU steps from the weights that are loaded",
    why="An optimizer that is offloaded (optimizer_cpu_offload) steps on copies of the weights on the host. "
    "If weights are loaded without optimizer states, Megatron refreshes neither these copies nor its main "
    "weights, unless the optimizer is precision-aware too (before 0.13 never). The first step then puts the "
    "weights back that the job began with. With the patch both are refreshed.",
    changes=("numbers",),
    met="optimizer_cpu_offload without use_precision_aware_optimizer (before 0.13 with it too), and weights "
    "that are loaded after the optimizer was made, without its states. Megatron's own arguments refuse that "
    "pair of settings; Megatron-Bridge, verl and NeMo-RL pass them on.",
    upstream=("NVIDIA/Megatron-LM#5071",),
    evidence="Steps after a load are to the bit those of torch's Adam on float32 copies of what was loaded. "
    "Upstream's open NVIDIA/Megatron-LM#5071 copies the same.",
    targets=one_target(
        MEGATRON, variant("0.12", replaced(_SITE, make_copy), f"{_HYBRID}._init_sub_optimizers")
    ),
)
