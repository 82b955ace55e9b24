"""`slime.one-step-log-probs`: a rollout of one step is trained on without log-probabilities of its own.

Where a rollout is one step, slime leaves log-probabilities to the loss, and so has none when it computes the
advantages, for which it wants their lengths alone. The training of a rollout runs as it is over the names of
its module, of which the computation of advantages is handed the masks of the responses in that case.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.one_step_log_probs.fix import make_train_actor

_ACTOR = "slime.backends.megatron_utils.actor"
_TRAIN = f"{_ACTOR}:MegatronTrainRayActor.train_actor"
_SLICE = "slime.backends.megatron_utils.cp_utils:slice_log_prob_with_cp"
_ADVANTAGES = "slime.backends.megatron_utils.loss:compute_advantages_and_returns"

PATCH = Patch(
    id="slime.one-step-log-probs",
    summary="A rollout of one step is trained on without log-probabilities of its own",
    why=(
        "Where a rollout is one training step, slime does not compute log-probabilities beforehand, as the "
        "loss has them at hand: the weights are the same. The advantages take their lengths from those of "
        "the rollout, and if a generate function of one's own brings none, the job ends: TypeError: "
        "'NoneType' object is not iterable. With the patch the lengths are those of the loss masks, and the "
        "rest is as slime means it: the old log-probabilities are those of the step itself, so the ratio is "
        "1, and there is no further forward pass. slime 0.2 computed them beforehand, with the same weights."
    ),
    changes=("crashes",),
    met=(
        "One training step per rollout with a policy loss and no KL in the rewards, and a generate function "
        "that brings no rollout_log_probs."
    ),
    upstream=("THUDM/slime#1976", "THUDM/slime#1897"),
    evidence=(
        "slime ends in TypeError without it. The advantages are those that the same rollout has with log- "
        "probabilities, of which slime 0.3 reads the lengths alone there."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.3",
            replaced(_TRAIN, make_train_actor),
            _ADVANTAGES,
            f"{_ACTOR}:slice_log_prob_with_cp",
            _SLICE,
        ),
    ),
)
