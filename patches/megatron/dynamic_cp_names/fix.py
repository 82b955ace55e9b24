"""The keyword, the getter and the groups that verl asks for, and the setting that it adds."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from types import ModuleType
from typing import Any

from overlay.patches._dynamic_cp.attention import confirm_attention
from overlay.patches._dynamic_cp.groups import check_count, warm_up

KEYWORD = "dynamic_context_parallel"


def make_initialize(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `initialize_model_parallel` with one more keyword, for which it makes and warms up the groups.

    Raises, where the keyword is true:
        NotImplementedError: There is static context parallelism as well, or attention would not follow.
        ValueError: The number of data parallel ranks is no power of two: some of Megatron's groups would
            have other sizes than they are asked for.

    """
    from overlay.patches.megatron.dynamic_cp_names.effect import EFFECT

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
