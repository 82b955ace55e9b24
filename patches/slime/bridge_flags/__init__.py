"""`slime.bridge-flags`: in bridge mode the model recomputes, and counts tokens, as it was asked to.

slime copies parallel sizes to the configuration that Megatron Bridge made of the checkpoint, and few other
arguments. The function that does so is wrapped. What it returns makes the model from that configuration
later, which gets the flags that were set; the others stay as the bridge has them.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Absent, Patch, one_target, replaced, variant
from overlay.patches.slime.bridge_flags.fix import make_provider

_PROVIDER = "slime.backends.megatron_utils.model_provider"

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
