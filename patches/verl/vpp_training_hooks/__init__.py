"""`verl.vpp-training-hooks`: virtual stages train with overlapped gradient reduction."""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_UTILS = "verl.utils.megatron_utils"
#: What Megatron's schedules take one of for each chunk.
_HOOKS = ("no_sync_func", "grad_sync_func", "param_sync_func")
EFFECT = effect(__name__, "model in virtual stages", did="registered the hooks of", always=True)


@around
def register_megatron_training_hooks(original: Any, model: Any, optimizer: Any) -> None:
    """Register chunk by chunk where they share a configuration, and put the hooks together."""
    from megatron.core.utils import get_model_config

    config = get_model_config(model[0])
    shared = len(model) > 1 and all(get_model_config(chunk) is config for chunk in model)
    if not shared or config.no_sync_func is not None:  # somebody's own, which verl refuses
        original(model, optimizer)
        return
    before = {name: getattr(config, name) for name in _HOOKS}
    hooks: dict[str, list[Any]] = {name: [] for name in _HOOKS}
    for chunk in model:
        original([chunk], optimizer)
        for name, of_chunks in hooks.items():
            if (hook := getattr(config, name)) is not before[name]:
                of_chunks.append(hook)
                setattr(config, name, before[name])
    for name, of_chunks in hooks.items():
        setattr(config, name, of_chunks or before[name])
    EFFECT.changed += any(hooks.values())


PATCH = Patch(
    id="verl.vpp-training-hooks",
    summary="Virtual pipeline stages start with overlapped gradient reduction",
    why="verl registers hooks for each chunk of a model, all of which share one configuration, and asserts "
    "each time that nobody has registered any. So with virtual stages and overlap_grad_reduce a job ends at "
    "its start: `When overlap_grad_reduce is True, config.no_sync_func must be None`. With the patch the "
    "chunks are registered one by one, and the configuration gets the hooks of all.",
    evidence="The gradients of two ranks are those of float64, and each chunk is reduced by its own hook.",
    changes=("crashes",),
    met="Megatron with virtual_pipeline_model_parallel_size above 1, and overlap_grad_reduce in "
    "override_ddp_config.",
    upstream=("verl-project/verl#7380",),
    targets=one_target(
        VERL,
        variant(
            "0.6", replaced(f"{_UTILS}:register_megatron_training_hooks", register_megatron_training_hooks)
        ),
    ),
)
