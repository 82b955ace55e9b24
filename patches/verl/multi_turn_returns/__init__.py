"""`verl.multi-turn-returns`: REINFORCE++ credits every turn with the reward that came of it.

verl's estimator starts anew at each token that the mask leaves out. That is right for padding and for nothing
else: what a tool or a user says between two turns is left out as well. The estimator is registered by a
decorator, so the seam is the function that looks it up. Who asks for REINFORCE++ gets one that hands verl's
own the tokens of the policy alone, without what stands between them, and puts the result back in its places.
A response without a gap is handed over as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_ESTIMATOR = "verl.trainer.ppo.core_algos:compute_reinforce_plus_plus_outcome_advantage"
EFFECT = effect(__name__, "batch", did="corrected the returns of")


def make_get_adv_estimator_fn(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `get_adv_estimator_fn`: REINFORCE++ over several turns, and the original's for all else."""
    theirs = module.compute_reinforce_plus_plus_outcome_advantage
    ours = over_turns(theirs)

    def get_adv_estimator_fn(name_or_enum: Any) -> Any:
        found = original(name_or_enum)
        return ours if found is theirs else found

    return get_adv_estimator_fn


def over_turns(estimator: Callable[..., Any]) -> Callable[..., Any]:
    """Return an estimator that sees each response as the policy's tokens in a row, and padding after them."""

    def compute_reinforce_plus_plus_outcome_advantage(
        token_level_rewards: Any, response_mask: Any, config: Any = None, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Return advantages and returns, each [samples, tokens] like the rewards, zero where the mask is."""
        own = response_mask.bool()
        order = own.int().argsort(dim=1, descending=True, stable=True)
        EFFECT.calls += 1
        # On a device nobody waits for it: there each of them counts.
        EFFECT.changed += order.device.type != "cpu" or _has_gaps(own)
        packed = (token_level_rewards.gather(1, order), response_mask.gather(1, order))
        places = order.argsort(dim=1)
        advantages, returns = (
            found.gather(1, places) for found in estimator(*packed, config=config, **kwargs)
        )
        return advantages, returns * response_mask

    return compute_reinforce_plus_plus_outcome_advantage


def _has_gaps(own: Any) -> bool:
    """Return whether some response has a token that is not the policy's before one that is."""
    return bool((own[:, 1:] & ~own[:, :-1]).any()) or bool((own.any(dim=1) & ~own[:, 0]).any())


PATCH = Patch(
    id="verl.multi-turn-returns",
    revision=2,
    summary="REINFORCE++ credits the turns before an observation too",
    why=(
        "With algorithm.adv_estimator=reinforce_plus_plus and rollouts of several turns, verl sets the "
        "return to zero at each token that is not the policy's: only the last turn is credited with the "
        "reward, and the turns before it get the same advantage whether the rollout succeeded or failed. "
        "With the patch the return is carried over what tools and users say, and is discounted by the "
        "policy's own tokens alone, as from verl 0.9.0 on. Tokens that rejection sampling leaves out are "
        "skipped in the same way, also in rollouts of one turn. A reward that stands on a token that is left "
        "out, as of a rollout that ends with an observation, is dropped, as in every release of verl. "
        "Responses without a gap in the mask get what verl computes, to the bit. The function is replaced "
        "where trainers look it up by the name of the estimator: code of your own that calls it by its own "
        "name, or takes it out of ADV_ESTIMATOR_REGISTRY itself, gets verl's."
    ),
    evidence=(
        "verl 0.9.0 changed the estimator to the same effect (#7278, #7300): the contract holds on 0.9.1 "
        "without the patch."
    ),
    changes=("numbers",),
    met=(
        "algorithm.adv_estimator=reinforce_plus_plus, and rollouts of several turns, with "
        "tools or users between, or rejection of single tokens."
    ),
    upstream=("verl-project/verl#7278", "verl-project/verl#7300"),
    targets=one_target(
        VERL,
        variant(
            "0.6",
            replaced("verl.trainer.ppo.core_algos:get_adv_estimator_fn", make_get_adv_estimator_fn),
            _ESTIMATOR,
        ),
    ),
)
