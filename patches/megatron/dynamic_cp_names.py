"""`megatron.dynamic-cp-names`: dynamic context parallelism on a released Megatron-Core.

Megatron-Core 0.16 to 0.19 has it under the name of hybrid context parallelism, and not all of it. What verl
asks of Megatron's development branch is made of that: the keyword and the groups here, what attention needs
in `overlay.patches._dynamic_cp.attention`.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON, VERL
from overlay.patch import Absent, Fields, Known, Patch, Present, Removal, Replacement, Target, Variant
from overlay.patches._dynamic_cp.attention import confirm_attention, make_attention_forward
from overlay.patches._dynamic_cp.groups import check_count, warm_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

ID = "megatron.dynamic-cp-names"

KEYWORD = "dynamic_context_parallel"


def make_initialize(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `initialize_model_parallel` with one more keyword, for which it makes and warms up the groups.

    Raises, where the keyword is true:
        NotImplementedError: There is static context parallelism as well, or attention would not follow.
        ValueError: The number of data parallel ranks is no power of two: some of Megatron's groups would
            have other sizes than they are asked for.

    """
    from inspect import Parameter, signature

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


_STATE = "megatron.core.parallel_state"
_ATTENTION = "megatron.core.transformer.attention:Attention.forward"
_SETTINGS = "verl.utils.megatron_utils:mapping_string_to_attn_backend"
_GETTER = f"{_STATE}:get_dynamic_data_context_parallel_groups"
_TE = "megatron.core.extensions.transformer_engine:TEDotProductAttention"
_ROPE = "megatron.core.models.common.embeddings.rope_utils"

#: What the patch was written against, in megatron-core 0.16.1, 0.17.1, 0.18.2, 0.19.2: what is replaced, and
#: what is relied on as a whole. The groups hold the ranks that their two functions lay out, rotary positions
#: are the very numbers that the three of `_ROPE` compute, and one call in `_preprocess` or in Transformer
#: Engine's attention that did not hand on the micro-batch's group would be silently wrong.
_DIGESTS = {
    f"{_STATE}:initialize_model_parallel": ("a871165220b6", "de9d2ef625c3", "60c588df03ae", "49fa6765822a"),
    f"{_STATE}:destroy_model_parallel": ("6d96a7aa57d4", "8bd274109701", "d65cc523f0b7", "5e950dea7dcf"),
    f"{_STATE}:get_hybrid_data_context_parallel_groups": ("99fb74b1ef01",),
    f"{_STATE}:create_hybrid_dp_cp_groups": ("64476f66c527",),
    _ATTENTION: ("d5e3e7f55b04", "e319eaf02b06", "1436aa006fed"),
    # Sets the group of a micro-batch, or none.
    f"{_TE}.forward": ("121a519b94fb", "4c4080befa9b"),
    f"{_ROPE}:apply_rotary_pos_emb": ("fe44030439ff", "8ed84752f274", "e8b6847e9612"),
    f"{_ROPE}:_apply_rotary_pos_emb_thd": ("c97233a7231d", "20bb4c96f4c8"),
    f"{_ROPE}:_get_thd_freqs_on_this_cp_rank": ("3ef986d546f9",),
    "megatron.core.models.gpt.gpt_model:GPTModel._preprocess": (
        "574e4f09190c",
        "1a8171560e08",
        "3d6d27e61034",
    ),
}

PATCH = Patch(
    id=ID,
    revision=1,
    summary="Dynamic context parallelism for verl on a released Megatron-Core",
    why=(
        "verl 0.8 asks Megatron for dynamic context parallelism by names that only its development branch "
        "has. Megatron-Core 0.16 to 0.19 has the groups under another name, without those of one rank, does "
        "not warm them up or forget them, computes a micro-batch's rotary positions in the static group, "
        "which fails or is silently wrong with fused kernels, and leaves Transformer Engine's attention in "
        "the group of the last micro-batch. With the patch the keyword, the getter and the groups are there, "
        "and attention works in the group of its micro-batch and in no other."
    ),
    upstream=("verl-project/verl#5057", "NVIDIA/Megatron-LM#3405"),
    remove=Removal(
        version=None,
        when="a released megatron-core has dynamic context parallelism by the names that verl asks for",
        test="tests/distributed/test_dynamic_cp_names.py::test_upstream_alone_has_what_verl_asks_for",
    ),
    targets=(
        Target(
            project=MEGATRON,
            serves=VERL.name,
            variants=(
                Variant(
                    name="0.16",
                    versions=">=0.16.0.dev0,<0.20.0.dev0",
                    shape=(
                        *(Known(site=site, digests=digests) for site, digests in _DIGESTS.items()),
                        # A micro-batch names its group, and one that is told of none has none.
                        Fields(
                            site="megatron.core.packed_seq_params:PackedSeqParams",
                            names=("local_cp_size", "cp_group"),
                            default="None",
                        ),
                        Absent(site=_GETTER),
                    ),
                    replacements=(
                        Replacement(
                            site=f"{_STATE}:initialize_model_parallel", make=make_initialize, adds=(KEYWORD,)
                        ),
                        Replacement(site=_GETTER, make=make_getter, new=True),
                        Replacement(site=f"{_STATE}:destroy_model_parallel", make=make_destroy),
                        Replacement(site=_ATTENTION, make=make_attention_forward),
                    ),
                ),
                Variant(
                    name="dev",
                    versions=">=0.16.0.dev0",
                    verdict="fixed-upstream",
                    shape=(Present(site=_GETTER), Present(site=f"{_STATE}:create_dynamic_dp_cp_groups")),
                    reason="this Megatron has dynamic context parallelism by the names that verl asks for",
                ),
                Variant(
                    name="0.15",
                    versions="<0.16.0.dev0",
                    verdict="not-affected",
                    shape=(Absent(site=_GETTER), Absent(site=f"{_STATE}:create_hybrid_dp_cp_groups")),
                    reason=(
                        "this Megatron has no groups of a micro-batch under any name: verl 0.8 refuses "
                        "dynamic_context_parallel=True on it, which takes megatron-core 0.16 or later"
                    ),
                ),
            ),
        ),
        Target(
            project=VERL,
            optional=True,
            variants=(
                Variant(
                    name="0.8",
                    versions=">=0.8.0.dev0,<0.9.0.dev0",
                    shape=(
                        Known(site=_SETTINGS, digests=("c903fbc5d6e0",)),
                        # The settings have to pass through what is replaced, a name that this imports for
                        # itself, and then get the unknown one as an item: no lesser condition says that.
                        Known(
                            site="verl.workers.engine.megatron.transformer_impl:MegatronEngine._build_tf_config",
                            digests=(
                                "4b2bae0c2c97",
                                "a628f23fcaea",
                                "4730eb00cc3e",
                                "0dc4b6326fa0",
                                "c45ad53cb919",
                            ),
                        ),
                    ),
                    replacements=(Replacement(site=_SETTINGS, make=make_settings),),
                ),
                Variant(
                    name="0.9",
                    versions=">=0.9.0.dev0",
                    verdict="superseded",
                    shape=(Present(site="verl.utils.dynamic_cp_scheduler"),),
                    reason="verl 0.9 runs Megatron's own scheduler, which no released megatron-core has",
                ),
                Variant(
                    name="0.7",
                    versions="<0.8.0.dev0",
                    verdict="not-affected",
                    shape=(Absent(site="verl.utils.megatron_utils:dynamic_cp_split_batch"),),
                    reason="dynamic context parallelism came with verl 0.8",
                ),
            ),
        ),
    ),
)
