"""What is known to be wrong in miles, with a patch or without."""

from __future__ import annotations

from overlay.compat.projects import MILES
from overlay.defect import above, among, beyond, other, switched
from overlay.patches._defects._short_forms import all_of, by_harm

_RETURNS = tuple(
    f"miles.{module}:get_reinforce_plus_plus_returns"
    for module in ("utils.ppo_utils", "backends.training_utils.loss_hub.math_utils")
)
_WHITENED = (switched("normalize_advantages"), above("context_parallel_size", 1))

_silent, _hang, _oom, _crash, _slow = by_harm(MILES)

DEFECTS = (
    _oom(
        id="miles.budget-exceeded-by-flops",
        summary="With --balance-by-flops micro-batches exceed max_tokens_per_gpu.",
        when=all_of(switched("use_dynamic_batch_size"), switched("balance_by_flops")),
        patch="miles.capped-partitions",
    ),
    _slow(
        id="miles.partitioner-slow",
        summary="The partitioner takes up to 20 seconds of each step, while the device waits.",
        when=(
            (switched("balance_data"),),
            (switched("balance_by_flops"),),
            (switched("use_dynamic_batch_size"), beyond("ranks cut their own micro-batches, as under FSDP")),
        ),
        patch="miles.fast-partitioner",
    ),
    _oom(
        id="miles.loss-copies-logits",
        summary="Log-probabilities and entropy hold three to four times the logits at once.",
        when=all_of(among("loss_type", "policy_loss", "sft_loss"), among("true_on_policy_mode", False)),
        patch="miles.loss-memory",
    ),
    _silent(
        id="miles.whitening-by-slice",
        summary="Each context parallel rank normalises advantages by the statistics of its own slices.",
        met="--normalize-advantages with a context parallel size above 1.",
        when=(_WHITENED,),
        patch="miles.whiten-over-cp",
    ),
    _hang(
        id="miles.whitening-waits",
        summary="A rank whose slices hold no response token skips a collective, and the others wait.",
        met="--normalize-advantages with context parallelism, where a rank has no response token.",
        when=all_of(*_WHITENED, beyond("some rank has no token of a response")),
        patch="miles.whiten-over-cp",
    ),
    _silent(
        id="miles.whitening-cancels",
        summary="The variance of large advantages is lost in float32: they are off, or NaN.",
        met="--normalize-advantages with advantages far from 0, whatever the context parallel size.",
        when=all_of(
            switched("normalize_advantages"),
            beyond("advantages are far from 0, as with rewards in the thousands"),
        ),
        patch="miles.whiten-over-cp",
    ),
    _silent(
        id="miles.masked-kl-in-returns",
        summary="REINFORCE++ subtracts the KL of tokens outside the loss from all returns before them.",
        met="--advantage-estimator reinforce_plus_plus with --kl-coef, and masked tokens in responses.",
        when=all_of(
            among("advantage_estimator", "reinforce_plus_plus"),
            other("kl_coef", 0),
            beyond("some token of a response is masked"),
        ),
        sites=_RETURNS,
        upstream=("THUDM/slime#1372",),
        way_out="--kl-coef 0, with --use-kl-loss if the policy is to stay near the reference",
    ),
)
