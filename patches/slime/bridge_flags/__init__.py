"""`slime.bridge-flags`: in bridge mode the model recomputes, and counts tokens, as it was asked to."""

from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Absent, Patch, around, one_target, replaced, variant

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
    """Copy the flags that are set in slime's arguments to the configuration that makes the model later.

    `provide` is a method of that, or holds it: the critic's function, or what freezes parameters in 0.3.0.
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


@around
def provider(original: Any, args: Any, *role: Any, **named: Any) -> Any:
    """Return the function that makes the model; only the bridge's own needs the flags."""
    provide = original(args, *role, **named)
    if args.megatron_to_hf_mode == "bridge" and not getattr(args, "custom_model_provider_path", None):
        hand_over(args, provide)
    return provide


PATCH = Patch(
    id="slime.bridge-flags",
    summary="In bridge mode the model recomputes, and counts tokens, as it was asked to",
    why="With --megatron-to-hf-mode bridge slime makes the model from what Megatron Bridge reads in the "
    "checkpoint, and drops most of its own arguments. Without --recompute-granularity and its companions, "
    "jobs that fit run out of memory. --calculate-per-token-loss reaches the loss but not the model: "
    "Megatron then divides each micro-batch by its own tokens, and those of short ones weigh more. slime "
    "0.2.2 and 0.2.3 lose --context-parallel-size too: each rank attends to its own tokens alone. With the "
    "patch the model gets the flags that are set. Mixture-of-experts losses stay as in the checkpoint.",
    changes=("numbers", "memory"),
    met="--megatron-to-hf-mode bridge with --recompute-granularity or --calculate-per-token-loss; in slime "
    "0.2.2 and 0.2.3 with a context parallel size above 1 too.",
    upstream=("radixark/miles#1483", "THUDM/slime@f655e13d9"),
    evidence="Outside bridge mode slime makes the configuration from these arguments, and 0.3.1 (f655e13) "
    "has no other way. Its commit 6006246 (#1715) hands over the context parallel size likewise.",
    targets=one_target(
        SLIME,
        variant(
            "0.2.2",
            replaced(f"{_PROVIDER}:get_model_provider_func", provider),
            Absent(site=f"{_PROVIDER}:_get_model_provider_func"),
        ),
        variant("0.3.0", replaced(f"{_PROVIDER}:_get_model_provider_func", provider)),
        tells=("slime.utils.megatron_bridge_utils",),
    ),
)
