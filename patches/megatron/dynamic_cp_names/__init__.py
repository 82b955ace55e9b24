"""`megatron.dynamic-cp-names`: dynamic context parallelism on a released Megatron-Core.

The keyword and the groups are here, what attention needs in `overlay.patches._dynamic_cp.attention`.
"""

from collections.abc import Callable
from inspect import Parameter, signature
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON, VERL
from overlay.effect import effect
from overlay.patch import Patch, Target, replaced, variant
from overlay.patches._dynamic_cp.attention import confirm_attention, make_attention_forward
from overlay.patches._dynamic_cp.groups import check_count, warm_up

_STATE = "megatron.core.parallel_state"
_TE = "megatron.core.extensions.transformer_engine:TEDotProductAttention"
_ROPE = "megatron.core.models.common.embeddings.rope_utils"
_GETTER = f"{_STATE}:get_dynamic_data_context_parallel_groups"
EFFECT = effect(__name__, "set of groups", did="made", always=True)


KEYWORD = "dynamic_context_parallel"


def make_initialize(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `initialize_model_parallel` with one more keyword, for which it makes and warms up the groups.

    It refuses static context parallelism beside it, attention that would not follow, and a number of data
    parallel ranks that is no power of two.
    """
    given = signature(original)
    extra = Parameter(KEYWORD, Parameter.KEYWORD_ONLY, default=False, annotation="bool")

    def initialize_model_parallel(*args: Any, dynamic_context_parallel: bool = False, **kwargs: Any) -> Any:
        if not dynamic_context_parallel:
            return original(*args, **kwargs)
        bound = given.bind(*args, **kwargs)
        bound.apply_defaults()
        ranks = _ranks(bound.arguments)
        confirm_attention()
        # With one rank there is nothing to share, and Megatron wants an even number.
        bound.arguments["hybrid_context_parallel"] = ranks > 1
        result = original(*bound.args, **bound.kwargs)
        warm_up(module, ranks)
        EFFECT.changed += 1
        return result

    vars(initialize_model_parallel)["__signature__"] = given.replace(
        parameters=[*given.parameters.values(), extra]
    )
    return initialize_model_parallel


def make_getter(_original: None, module: ModuleType) -> Callable[..., Any]:
    """Build the getter of a rank's group of each size, also of one rank, which Megatron leaves out."""

    def get_dynamic_data_context_parallel_groups(
        check_initialized: bool = True, group_size: int | None = None
    ) -> Any:
        """Return this rank's group of `group_size` neighbours. Raises `KeyError` if there is none."""
        if group_size == 1:
            # Of this rank alone, as there is no static context parallelism.
            return module.get_context_parallel_group(check_initialized)
        return module.get_hybrid_data_context_parallel_groups(check_initialized, group_size)

    return get_dynamic_data_context_parallel_groups


def make_destroy(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `destroy_model_parallel`, which forgets these groups too: they would pass for the next ones."""

    def destroy_model_parallel() -> Any:
        result = original()
        module._HYBRID_DP_CP_GROUPS.clear()  # noqa: SLF001 -- Megatron itself never does
        return result

    return destroy_model_parallel


def make_settings(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build what verl makes a dictionary of model settings with, which then refuses the one that is unknown.

    verl adds `dynamic_context_parallel=False` to it, so that Megatron leaves the schedule to verl. A released
    Megatron has no such field, and does so anyway.
    """

    class Settings(dict[str, object]):
        def __setitem__(self, key: str, value: object) -> None:
            if key != KEYWORD or value:
                super().__setitem__(key, value)

    def mapping_string_to_attn_backend(args: Any) -> Any:
        return Settings(original(args))

    return mapping_string_to_attn_backend


def _ranks(arguments: dict[str, Any]) -> int:
    """Return W, the data parallel ranks that these arguments of `initialize_model_parallel` lead to."""
    import torch.distributed as dist

    static = arguments["context_parallel_size"]
    if static != 1 or arguments.get("gtp_remat_size", 1) != 1:
        what = f"context_parallel_size={static}" if static != 1 else "gtp_remat_size"
        msg = f"{KEYWORD}=True does not work with {what}: ranks are shared in one way only. Set it to 1."
        raise NotImplementedError(msg)
    world: int = arguments.get("local_world_size") or dist.get_world_size()
    ranks: int = world // (
        arguments["tensor_model_parallel_size"] * arguments["pipeline_model_parallel_size"]
    )
    check_count(ranks)
    return ranks


PATCH = Patch(
    id="megatron.dynamic-cp-names",
    summary="Dynamic context parallelism for verl on a released Megatron-Core",
    why="verl 0.8 asks Megatron for dynamic context parallelism by names of its development branch. "
    "Megatron-Core 0.16 to 0.19 has it as hybrid context parallelism, and not all of it: rotary positions "
    "are computed in the static group, which fails or is silently wrong with fused kernels, and Transformer "
    "Engine's attention stays in the group of the last micro-batch. With the patch names and groups are "
    "there, and attention follows.",
    changes=("numbers", "crashes"),
    met="verl's dynamic_context_parallel=True on a released Megatron-Core.",
    evidence="A step's gradients are compared with one process. Without the patch verl raises on these "
    "releases.",
    upstream=("verl-project/verl#5057", "NVIDIA/Megatron-LM#3405"),
    targets=(
        Target(
            project=MEGATRON,
            serves=VERL.name,
            variants=(
                variant(
                    "0.16",
                    replaced(f"{_STATE}:initialize_model_parallel", make_initialize, adds=(KEYWORD,)),
                    replaced(f"{_STATE}:destroy_model_parallel", make_destroy),
                    f"{_STATE}:get_hybrid_data_context_parallel_groups",
                    f"{_STATE}:create_hybrid_dp_cp_groups",
                    replaced("megatron.core.transformer.attention:Attention.forward", make_attention_forward),
                    f"{_TE}.forward",
                    f"{_ROPE}:apply_rotary_pos_emb",
                    f"{_ROPE}:_apply_rotary_pos_emb_thd",
                    f"{_ROPE}:_get_thd_freqs_on_this_cp_rank",
                    "megatron.core.models.gpt.gpt_model:GPTModel._preprocess",
                    "megatron.core.packed_seq_params:PackedSeqParams",
                    replaced(_GETTER, make_getter, new=True),
                ),
            ),
            tells=(f"{_STATE}:create_dynamic_dp_cp_groups",),
        ),
        Target(
            project=VERL,
            optional=True,
            variants=(
                variant(
                    "0.8",
                    replaced("verl.utils.megatron_utils:mapping_string_to_attn_backend", make_settings),
                    "verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",
                ),
            ),
            tells=("verl.utils.dynamic_cp_scheduler", "verl.utils.megatron_utils:dynamic_cp_split_batch"),
        ),
    ),
)
