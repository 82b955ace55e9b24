"""The groups of dynamic context parallelism, made for the first engine that asks for them.

Engines of one process share Megatron's groups, and verl 0.8.0 lays them out for the first engine alone. The
dynamic ones depend on nothing else, so all ranks can make them at any time, in one order.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.patches._dynamic_cp.attention import confirm_attention
from overlay.patches._dynamic_cp.plan import allowed_sizes
from overlay.patches._dynamic_cp.refusals import refuse_settings

GETTER = "get_dynamic_data_context_parallel_groups"

#: What makes a rank's groups and where they are kept: in Megatron's development branch, and in releases.
_MAKERS = (
    ("create_dynamic_dp_cp_groups", "_DYNAMIC_DP_CP_GROUPS"),
    ("create_hybrid_dp_cp_groups", "_HYBRID_DP_CP_GROUPS"),
)


def make_device_mesh(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap the layout of the ranks: an engine gets its dynamic groups if another engine was laid out first.

    What is refused depends on settings and sizes only, so all ranks raise alike, when the engine is made.
    """
    from weakref import WeakSet

    from megatron.core import parallel_state as mpu

    #: The data parallel groups of the layouts in which an engine has dynamic context parallelism.
    dynamic: WeakSet[Any] = WeakSet()

    def _init_device_mesh(self: Any) -> Any:
        config = self.engine_config
        if not config.dynamic_context_parallel:
            static = config.context_parallel_size
            # verl would make it without: its groups are those of the first engine.
            if static != 1 and mpu.is_initialized() and mpu.get_data_parallel_group() in dynamic:
                raise NotImplementedError(
                    f"context_parallel_size={static} does not work beside an engine with "
                    "dynamic_context_parallel=True. Set context_parallel_size=1, or "
                    "dynamic_context_parallel=False for the actor, its reference and the critic."
                )
            return original(self)
        refuse_settings(config, isinstance(self, module.MegatronEngineWithValueHead))
        shared = mpu.is_initialized()
        if shared:
            _refuse_layout(config, mpu)
        result = original(self)
        if shared:
            ensure_groups(mpu)
        dynamic.add(mpu.get_data_parallel_group())
        return result

    return _init_device_mesh


def ensure_groups(mpu: ModuleType) -> None:
    """Make the groups that are missing in Megatron's `parallel_state`. All ranks must call this.

    Raises what `confirm_attention` and `check_count` do.
    """
    import torch.distributed as dist

    confirm_attention()
    maker, kept = next(names for names in _MAKERS if hasattr(mpu, names[0]))
    own = dist.get_process_group_ranks(mpu.get_data_parallel_group(with_context_parallel=True))
    ranks = len(own)
    if maker != _MAKERS[0][0]:
        check_count(ranks)
    # Told by every rank, as Megatron does not keep the others' groups; and all make groups if one must.
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (own, bool(missing_sizes(mpu))))
    if not any(missing for _, missing in told):
        return
    for group in sorted({tuple(members) for members, _ in told}):
        # Megatron's options for its communicators are in a file that verl does not name: there are none.
        vars(mpu)[kept].update(getattr(mpu, maker)(dist.get_rank(), list(group), None))
    warm_up(mpu, ranks)


def missing_sizes(mpu: ModuleType) -> list[int]:
    """Return the sizes for which this rank has no group, or one kept from a layout before this one."""
    import torch.distributed as dist

    group = mpu.get_data_parallel_group(with_context_parallel=True)
    members, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    missing = []
    for size in allowed_sizes(len(members)):
        start = place - place % size
        try:
            found = dist.get_process_group_ranks(getattr(mpu, GETTER)(group_size=size))
        except (KeyError, AssertionError):  # never made, or destroyed since
            found = []
        if found != members[start : start + size]:
            missing.append(size)
    return missing


def confirm_groups(mpu: ModuleType) -> None:
    """Raise `NotImplementedError` before a rank waits in a group that another rank does not have."""
    missing = missing_sizes(mpu)
    if missing:
        raise NotImplementedError(
            f"dynamic_context_parallel=True needs context parallel groups of {missing} ranks, which Megatron "
            "does not have: its groups were laid out anew after this engine was made. Make the engine again."
        )


def check_count(ranks: int) -> None:
    """Raise `ValueError` unless a released Megatron has groups of the right sizes for so many ranks."""
    if ranks & (ranks - 1):
        raise ValueError(
            "dynamic_context_parallel=True needs a number of data parallel ranks that is a power of two, not "
            f"{ranks}: Megatron has no context parallel groups for others. Use another number of GPUs, or "
            "other tensor or pipeline parallel sizes."
        )


def warm_up(mpu: ModuleType, ranks: int) -> None:
    """Let each group talk once, the small ones first on every rank.

    NCCL sets up a group at its first collective. Set up in different orders on different ranks, or while a
    pipeline stage waits for another, groups wait for each other for ever.
    """
    import torch
    import torch.distributed as dist

    for size in allowed_sizes(ranks)[1:]:
        group = getattr(mpu, GETTER)(group_size=size)
        devices = [torch.cuda.current_device()] if dist.get_backend(group) == "nccl" else None
        dist.barrier(group=group, device_ids=devices)


def _refuse_layout(config: Any, mpu: ModuleType) -> None:
    """Raise if groups that are there already cannot be those of an engine with dynamic ones."""
    import torch.distributed as dist

    if not hasattr(mpu, GETTER):
        raise NotImplementedError(
            "dynamic_context_parallel=True is not supported by this Megatron, which has no groups of a "
            "micro-batch. Select megatron.dynamic-cp-names, which supplies them on megatron-core 0.16 to "
            "0.19, or set dynamic_context_parallel=False."
        )
    static = mpu.get_context_parallel_world_size()
    if static != 1:
        raise NotImplementedError(
            f"dynamic_context_parallel=True does not work beside context_parallel_size={static} of the "
            "engine that was made first. Set context_parallel_size=1 for the actor, its reference and the "
            "critic."
        )
    tensor = mpu.get_tensor_model_parallel_world_size()
    pipeline = mpu.get_pipeline_model_parallel_world_size()
    wanted = (config.tensor_model_parallel_size, config.pipeline_model_parallel_size)
    if wanted != (tensor, pipeline):
        raise ValueError(
            "dynamic_context_parallel=True with tensor_model_parallel_size, pipeline_model_parallel_size = "
            f"{wanted}, and the engine that was made first has {tensor, pipeline}. Set the same sizes for "
            "the actor, its reference and the critic."
        )
    ranks = mpu.get_data_parallel_world_size(with_context_parallel=True)
    if ranks * tensor * pipeline != dist.get_world_size():
        raise NotImplementedError(
            f"dynamic_context_parallel=True: Megatron was laid out over {ranks * tensor * pipeline} of "
            f"{dist.get_world_size()} ranks, and dynamic groups are made by all ranks of a job together. Let "
            "verl lay out the ranks, or set dynamic_context_parallel=False."
        )
