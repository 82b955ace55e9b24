"""`slime.one-step-log-probs`: a rollout of one step is trained on without log-probabilities of its own.

Where a rollout is one step, slime leaves log-probabilities to the loss, and so has none when it computes the
advantages, for which it wants their lengths alone. The training of a rollout runs as it is over the names of
its module, of which the computation of advantages is handed the masks of the responses in that case.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Absent, Patch, Removal, known, not_affected, one_target, replaced, variant
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
    remove=Removal(
        when="a release computes advantages without log-probabilities",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.3",
            ">=0.2.5.dev0",
            # v0.3.0; v0.3.1; after it. Commits after the tag call themselves 0.3.1 as well.
            replaced(_TRAIN, make_train_actor, "0994921c4a1e", "47557f143cb3", "4b890748b483"),
            known(_ADVANTAGES, "35d9bb8ea6f7", "2f3b104525de", "2cb81e45e500"),
            known(f"{_ACTOR}:slice_log_prob_with_cp", "c209a7de208b"),
            known(_SLICE, "9eebe53f3605", "734123b9cf6a"),
        ),
        not_affected(
            "0.2",
            ">=0.1.0.dev0,<0.2.5.dev0",
            # v0.2.0; v0.2.1 and v0.2.2; v0.2.3; v0.2.4 and 286750aa3
            known(_TRAIN, "c4bde3c4a74b", "6d11b36acd33", "393e8eb8eebd", "4bc4f8882058"),
            reason="slime computes log-probabilities before the advantages",
        ),
        # v0.1.0 calls itself 0.0.1.
        not_affected(
            "0.1",
            "<0.1.0.dev0",
            Absent(site=_TRAIN),
            reason="slime computes log-probabilities before the advantages",
        ),
    ),
)
