"""What hands the model that Megatron Bridge makes the training flags that slime leaves out."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

#: By the names that arguments and configuration share.
FLAGS = (
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "distribute_saved_activations",
    "calculate_per_token_loss",
    "context_parallel_size",
)


def hand_over(args: Any, provide: Any) -> None:
    """Set on the configuration behind a function of slime's the flags that are set in its arguments.

    Args:
        args: slime's arguments.
        provide: Makes a part of the model: a method of the configuration, or the critic's, which holds it.

    """
    from overlay.patches.slime.bridge_flags.effect import EFFECT

    inner = dict(zip(provide.__code__.co_freevars, provide.__closure__ or (), strict=True))
    if "_original_provide" in inner:
        provide = inner["_original_provide"].cell_contents
    for flag in FLAGS:
        value = getattr(args, flag, None)
        if value:
            EFFECT.calls += 1
            EFFECT.changed += getattr(provide.__self__, flag, None) != value
            setattr(provide.__self__, flag, value)


def make_provider(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the choice of the function that makes the model: in 0.3.0, inside of what freezes parameters."""

    def get_model_provider_func(args: Any, role: Any = "actor") -> Any:
        return handed(args, original(args, role))

    return get_model_provider_func


def handed(args: Any, provide: Any) -> Any:
    """Return the function, with the flags handed over if it is the bridge's, and not one of the job's own."""
    own = getattr(args, "custom_model_provider_path", None)
    if args.megatron_to_hf_mode == "bridge" and not own:
        hand_over(args, provide)
    return provide
