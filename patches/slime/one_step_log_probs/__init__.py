"""`slime.one-step-log-probs`: a rollout of one step is trained on without log-probabilities of its own."""

from collections.abc import Iterator
from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._rebound import rebound

_ACTOR = "slime.backends.megatron_utils.actor"
_TRAIN = f"{_ACTOR}:MegatronTrainRayActor.train_actor"
_SLICES = (
    f"{_ACTOR}:slice_log_prob_with_cp",
    "slime.backends.megatron_utils.cp_utils:slice_log_prob_with_cp",
)
_ADVANTAGES = "slime.backends.megatron_utils.loss:compute_advantages_and_returns"
EFFECT = effect(__name__, "rollout", did="supplied the lengths of", always=True)
#: What slime takes the lengths from.
_SOURCES = ("log_probs", "rollout_log_probs", "values")


def make_train_actor(original: Any, module: Any) -> Any:
    """Let slime train, with the masks of the responses where nothing else tells it their lengths."""

    def masks(rollout_data: Any) -> Iterator[Any]:
        """Yield this rank's part of each mask, once: nobody is to take them for a critic's values."""
        # Only slime 0.3.0 pads sequences.
        padded = rollout_data.get("max_seq_lens")
        names = ("loss_masks", "total_lengths", "response_lengths")
        for index, sample in enumerate(zip(*(rollout_data[name] for name in names), strict=True)):
            padding = ("bshd", padded[index]) if padded else ()
            yield module.slice_log_prob_with_cp(*sample, *padding)
        del rollout_data["values"]

    def compute_advantages_and_returns(args: Any, rollout_data: Any) -> Any:
        # That log-probabilities are asked for and not there stays an error.
        needed = args.use_rollout_logprobs or args.kl_coef != 0
        if needed or any(rollout_data.get(name) for name in _SOURCES):
            return module.compute_advantages_and_returns(args, rollout_data)
        EFFECT.changed += 1
        lengths = rollout_data["values"] = masks(rollout_data)
        try:
            return module.compute_advantages_and_returns(args, rollout_data)
        finally:
            # On a stage before the last, slime does not look at them. A user's function may leave its own.
            if rollout_data.get("values") is lengths:
                del rollout_data["values"]

    def train_actor(*given: Any, **named: Any) -> Any:
        own = rebound(original, module, compute_advantages_and_returns=compute_advantages_and_returns)
        return own(*given, **named)

    return wraps(original)(train_actor)


PATCH = Patch(
    id="slime.one-step-log-probs",
    summary="A one-step rollout can be trained on without rollout log-probs",
    why="Where a rollout is one training step, slime 0.3 leaves log-probabilities to the loss, as the "
    "weights are the same. The advantages take their lengths from those of the rollout, and if a user's "
    "generate function brings none, the job ends in TypeError: 'NoneType' object is not iterable. With the "
    "patch the lengths are those of the loss masks, and there is no extra forward pass.",
    changes=("crashes",),
    met="One step per rollout, a policy loss, no KL in the rewards, and no rollout_log_probs.",
    upstream=("THUDM/slime#1976", "THUDM/slime#1897"),
    evidence="slime 0.3 reads only the lengths there: the advantages are those that log-probs give.",
    targets=one_target(
        SLIME,
        variant("0.3", replaced(_TRAIN, make_train_actor), _ADVANTAGES, *_SLICES),
    ),
)
