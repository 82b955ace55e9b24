"""`slime.bridge-flags`: in bridge mode the model recomputes, and counts tokens, as it was asked to.

slime copies parallel sizes to the configuration that Megatron Bridge made of the checkpoint, and few other
arguments. The function that does so is wrapped. What it returns makes the model from that configuration
later, which gets the flags that were set; the others stay as the bridge has them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Absent, Patch, one_target, replaced, variant

_PROVIDER = "slime.backends.megatron_utils.model_provider"
EFFECT = effect(__name__, "flag", did="handed over")


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


PATCH = Patch(
    id="slime.bridge-flags",
    summary="In bridge mode the model recomputes, and counts tokens, as it was asked to",
    why=(
        "With --megatron-to-hf-mode bridge, slime makes the model from what Megatron Bridge reads in the "
        "checkpoint, and hands it few of its arguments. --recompute-granularity and the options beside it "
        "are lost, and jobs that fit run out of memory. --calculate-per-token-loss is lost for the model and "
        "not for the loss: Megatron's schedule then divides each micro-batch by its own number of tokens, so "
        "that tokens of short ones weigh more, where one mean over all tokens was asked for. slime 0.2.2 and "
        "0.2.3 lose --context-parallel-size too, so that each rank attends to its own tokens alone. With the "
        "patch the model's configuration has those flags that are set. Of the flags of mixture-of-experts "
        "losses nothing is changed: there the checkpoint may be meant."
    ),
    changes=("numbers", "memory"),
    met=(
        "--megatron-to-hf-mode bridge with --recompute-granularity or --calculate-per-token-loss; in slime "
        "0.2.2 and 0.2.3 with a context parallel size above 1 too."
    ),
    upstream=("radixark/miles#1483", "THUDM/slime@f655e13d9"),
    evidence=(
        "Without bridge mode slime makes the model's configuration from these very arguments, and 0.3.1 "
        "(f655e13, #2251) has no other way. Its commit 6006246 (#1715) hands over the context parallel "
        "size likewise."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.2.2",
            replaced(f"{_PROVIDER}:get_model_provider_func", make_provider),
            Absent(site=f"{_PROVIDER}:_get_model_provider_func"),
        ),
        variant(
            "0.3.0",
            replaced(f"{_PROVIDER}:_get_model_provider_func", make_provider),
        ),
        tells=("slime.utils.megatron_bridge_utils",),
    ),
)
