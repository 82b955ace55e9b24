"""`megatron.offloaded-resume`: an optimizer that is offloaded to the CPU resumes where it was saved."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_OPTIMIZER = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"
_HYBRID = "megatron.core.optimizer.cpu_offloading.hybrid_optimizer:HybridDeviceOptimizer"
EFFECT = effect(__name__, "weight", did="loaded the state of", always=True)


def _is_offloaded(optimizer: Any) -> bool:
    return hasattr(optimizer, "param_to_inner_param")


@around
def get_state(original: Any, self: Any, model_param: Any) -> Any:
    """Leave out the number of steps, which is saved once for each group: that of a weight is never saved."""
    tensors = original(self, model_param)
    if _is_offloaded(self.optimizer):
        tensors.pop("step", None)
    return tensors


@around
def set_state(original: Any, self: Any, model_param: Any, tensors: Any) -> Any:
    """Set the state of a weight, and then that of its copy, on which the optimizer steps."""
    hybrid = self.optimizer
    if not _is_offloaded(hybrid):
        return original(self, model_param, tensors)
    group, place = self.model_param_group_index_map[model_param]
    weight = hybrid.param_groups[group]["params"][place]
    steps = {key: value for key, value in hybrid.state[weight].items() if key == "step"}
    original(self, model_param, {"master_param": tensors["param"], **tensors, **steps})
    copy, state = hybrid.param_to_inner_param[weight], hybrid.state[weight]
    copy.data.copy_(tensors["param"])
    for key, value in state.items():
        if hasattr(value, "to"):
            state[key] = copy if key == "master_param" else value.to(copy.device)
    EFFECT.changed += 1
    return None


@around
def update_copies(_original: Any, self: Any) -> None:
    """Copy each main weight to where the optimizer steps on it, also those that were in float32 before."""
    for weight, state in self.state.items() if self.param_update_in_fp32 else ():
        if "master_param" in state:
            self.param_to_inner_param[weight].data.copy_(state["master_param"])


@around
def make_optimizers(original: Any, self: Any) -> None:
    """Let torch load checkpoints that name the classes of these optimizers, as all have that are saved."""
    import torch

    original(self)
    classes = {self.cpu_optimizer_cls, self.gpu_optimizer_cls} - {None}
    torch.serialization.add_safe_globals(list(classes))


PATCH = Patch(
    id="megatron.offloaded-resume",
    summary="An optimizer offloaded to the CPU resumes with the weights and step that it was saved with",
    why="If an optimizer is offloaded to the CPU (optimizer_cpu_offload), Megatron resumes wrongly in "
    "several ways. Loaded from dp_reshardable, Adam counts its steps from 1, so its bias correction is "
    "wrong (0.15 can't save it). Loaded from dp_zero_gather_scatter, the first step puts back the weights "
    "that the job began with. In the other formats torch refuses the file from 0.14 to 0.18 (Weights only "
    "load failed), because it names the classes of the optimizers. Without use_precision_aware_optimizer, a "
    "resume ends in a KeyError. With the patch an offloaded optimizer goes on where it was saved, also from "
    "checkpoints that were saved without the patch.",
    changes=("numbers", "crashes"),
    met="A resume with optimizer states and optimizer_cpu_offload.",
    upstream=("NVIDIA/Megatron-LM#7449", "NovaSky-AI/SkyRL#1403", "NVIDIA-NeMo/RL#1553"),
    evidence="After a resume, steps are to the bit those of torch's Adam that was never saved, in each "
    "format.",
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(f"{_OPTIMIZER}._get_main_param_and_optimizer_states", get_state),
            replaced(f"{_OPTIMIZER}._set_main_param_and_optimizer_states", set_state),
            replaced(f"{_HYBRID}._update_fp32_params_by_new_state", update_copies),
            replaced(f"{_HYBRID}._init_sub_optimizers", make_optimizers),
            f"{_HYBRID}._sync_hdo_state_to_sub_optimizers",
        ),
    ),
)
