"""`verl.critic-loss-scale`: the gradient of a critic does not depend on how its batch is cut.

verl's engines tell a loss how many tokens and samples the whole batch has, and by what data parallelism
divides. The loss of a policy takes it into account, and that of a critic does not. The numbers are handed
to the function that aggregates both, by a context variable: what is aggregated, and how, stays upstream's
own.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Calls, Patch, one_target, replaced, variant
from overlay.patches.verl.critic_loss_scale.fix import make_agg_loss, make_train_batch, make_value_loss

_LOSSES = "verl.workers.utils.losses"
_VALUE_LOSS = f"{_LOSSES}:value_loss"
_TRAIN_BATCH = "verl.workers.engine.base:BaseEngine.train_batch"
_ALGORITHMS = "verl.trainer.ppo.core_algos"
_AGGREGATE, _COMPUTE = f"{_ALGORITHMS}:agg_loss", f"{_ALGORITHMS}:compute_value_loss"

PATCH = Patch(
    id="verl.critic-loss-scale",
    revision=2,
    summary="The gradient of a critic does not depend on how its batch is cut",
    why=(
        "verl 0.7 and 0.8 take the mean of a critic's loss over each micro-batch, and add up the "
        "gradients. So the gradient grows with the number of micro-batches, a short micro-batch counts "
        "as much as a full one, and another micro-batch size, or use_dynamic_bsz, is another learning "
        "rate. With the patch the loss is the mean over the whole mini-batch of all ranks, as that of "
        "the policy is, and as in verl 0.9. The norm that is reported falls by about the number of "
        "micro-batches. Adam, and a gradient that is clipped at each step, hide a size that stays the "
        "same, but neither that it changes with the number of micro-batches, nor the weight of short "
        "ones. With one micro-batch on one rank, nothing changes under token-mean. Tokens that "
        "rejection sampling leaves out do not count, also where only response_mask says so. Under the modes "
        "that begin with seq-mean, samples without a token that counts are part of the number by which is "
        "divided, as they are for the policy. seq-mean-token-sum-norm divides by the width of a "
        "micro-batch besides, which main_ppo_sync of 0.8 lets differ, and is a sum over a rank's samples in "
        "0.7.0: both are so for the policy, and stay so. critic/vf_loss is reported for the whole mini-batch "
        "from verl 0.7.1 on; 0.7.0 has no way to say so, and reports the mean of its micro-batches as before."
        " The legacy workers (0.7 with use_legacy_worker_impl other than disable), whose micro-batches "
        "count by their samples, are left alone."
    ),
    evidence=(
        "verl 0.9.0 takes the mean of a critic's loss over the mini-batch too (#6957). The contract "
        "compares gradients with one process in float64, also where loss_mask and response_mask differ: "
        "there the tokens that are kept count, as for one micro-batch of verl 0.8 alone, and verl 0.9 "
        "counts the rejected ones as well."
    ),
    changes=("numbers",),
    met="A critic on verl's FSDP or Megatron engine, with several micro-batches or data parallel ranks.",
    upstream=("verl-project/verl#6957",),
    targets=one_target(
        VERL,
        variant(
            "0.7 and 0.8",
            replaced(_VALUE_LOSS, make_value_loss),
            replaced(_AGGREGATE, make_agg_loss),
            Calls(site=_COMPUTE, callee="agg_loss"),
            replaced(_TRAIN_BATCH, make_train_batch),
        ),
        tells=(_LOSSES,),
    ),
)
