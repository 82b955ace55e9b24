"""`verl.rejected-in-groups`: a response that is rejected whole has no part in the statistics of its group."""

from typing import Any

from overlay import log
from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

#: They compare the responses of a group, and take one that is alone.
_ESTIMATORS = ("grpo", "grpo_vectorized", "opo", "reinforce_plus_plus_baseline", "rloo", "rloo_vectorized")
EFFECT = effect(__name__, "response", did="left out of its group")
_TOO_LATE = (
    "verl.rejected-in-groups does nothing with rollout_correction.bypass_mode: responses are rejected in the "
    "loss, when they have their advantages"
)


@around
def compute_advantage(original: Any, data: Any, adv_estimator: Any, *rest: Any, **named: Any) -> Any:
    """Give each rejected response a group of its own, if two others are left in its group."""
    if getattr(adv_estimator, "value", adv_estimator) not in _ESTIMATORS or "response_mask" not in data.batch:
        return original(data, adv_estimator, *rest, **named)
    correction = (named.get("config") or {}).get("rollout_correction") or {}
    if correction.get("bypass_mode") and correction.get("rollout_rs"):
        log.warning(_TOO_LATE)
    groups = data.non_tensor_batch["uid"]
    keeps = (data.batch["response_mask"].sum(-1) > 0).tolist()
    left: dict[Any, int] = {}
    for group, keep in zip(groups, keeps, strict=True):
        left[group] = left.get(group, 0) + keep
    apart = groups.astype(object)
    for at, (group, keep) in enumerate(zip(groups, keeps, strict=True)):
        out = not keep and left[group] > 1
        EFFECT.changed += out
        apart[at] = f"{group}, rejected {at}" if out else str(group)
    EFFECT.calls += len(keeps)
    data.non_tensor_batch["uid"] = apart
    try:
        return original(data, adv_estimator, *rest, **named)
    finally:
        data.non_tensor_batch["uid"] = groups


PATCH = Patch(
    id="verl.rejected-in-groups",
    summary="Responses rejected as a whole don't count in their group's statistics",
    why="Rejection sampling masks a response whose probabilities differ too much between rollout and "
    "training. verl's group estimators still take its reward into the group's mean and deviation, so it "
    "moves the advantages of the others. With the patch they are compared among themselves, without those "
    "that have no token left, whatever the reason. A group with fewer than two of them stays as verl has it, "
    "and so do grpo_passk, gpg and gdpo.",
    evidence="A reading: verl's own treatment can be defended, as the reward of a rejected response is a "
    "sample of the rollout's policy. An open pull request takes the patch's (#6452).",
    opt_in=True,
    changes=("numbers",),
    met="algorithm.rollout_correction.rollout_rs without bypass_mode, with a group estimator: grpo, rloo, "
    "opo, or reinforce_plus_plus_baseline.",
    upstream=("verl-project/verl#6452",),
    targets=one_target(
        VERL, variant("0.6", replaced("verl.trainer.ppo.ray_trainer:compute_advantage", compute_advantage))
    ),
)
