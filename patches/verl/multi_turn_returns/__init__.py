"""`verl.multi-turn-returns`: REINFORCE++ runs on responses whose tokens of the policy are moved together."""

from functools import wraps
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_ALGORITHMS = "verl.trainer.ppo.core_algos"
EFFECT = effect(__name__, "batch", did="corrected the returns of")


def make_get_adv_estimator_fn(original: Any, module: Any) -> Any:
    """Return our estimator where trainers that look one up by its name get REINFORCE++."""
    theirs = module.compute_reinforce_plus_plus_outcome_advantage
    ours = over_turns(theirs)

    def get_adv_estimator_fn(name_or_enum: Any) -> Any:
        found = original(name_or_enum)
        return ours if found is theirs else found

    return get_adv_estimator_fn


def over_turns(estimator: Any) -> Any:
    """Return an estimator of advantages and returns, each [samples, tokens], zero where the mask is."""

    @wraps(estimator)
    def compute_reinforce_plus_plus_outcome_advantage(
        token_level_rewards: Any, response_mask: Any, config: Any = None, **kwargs: Any
    ) -> tuple[Any, Any]:
        own = response_mask.bool()
        order = own.int().argsort(dim=1, descending=True, stable=True)
        EFFECT.calls += 1
        # Nobody waits for a device: there each batch counts. On a CPU, one in which a token of the policy
        # follows one that is not.
        EFFECT.changed += order.device.type != "cpu" or bool((own[:, 1:] & ~own[:, :-1]).any())
        packed = (token_level_rewards.gather(1, order), response_mask.gather(1, order))
        places = order.argsort(dim=1)
        found = estimator(*packed, config=config, **kwargs)
        advantages, returns = (one.gather(1, places) for one in found)
        return advantages, returns * response_mask

    return compute_reinforce_plus_plus_outcome_advantage


PATCH = Patch(
    id="verl.multi-turn-returns",
    summary="REINFORCE++ credits the turns before an observation too",
    why="With algorithm.adv_estimator=reinforce_plus_plus and rollouts of several turns, verl resets the "
    "return to zero at each token that is not the policy's. Only the last turn is credited with the reward, "
    "and the turns before it get the same advantage whether the rollout succeeded or failed. With the patch "
    "the return is carried over what tools and users say, and over tokens that rejection sampling leaves "
    "out, as from verl 0.9.0 on; without a gap in the mask nothing changes. A reward on a token that is left "
    "out is dropped, as in every release. Code of your own that calls the function directly, or takes it out "
    "of ADV_ESTIMATOR_REGISTRY, gets verl's.",
    evidence="verl 0.9.0 changed the estimator to the same effect (#7278, #7300).",
    changes=("numbers",),
    met="adv_estimator=reinforce_plus_plus, with rollouts of several turns or rejection of single tokens.",
    upstream=("verl-project/verl#7278", "verl-project/verl#7300"),
    targets=one_target(
        VERL,
        variant(
            "0.6",
            replaced(f"{_ALGORITHMS}:get_adv_estimator_fn", make_get_adv_estimator_fn),
            f"{_ALGORITHMS}:compute_reinforce_plus_plus_outcome_advantage",
        ),
    ),
)
