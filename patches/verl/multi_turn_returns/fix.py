"""What hands verl's REINFORCE++ the policy's tokens without what stands between them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


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
    from overlay.patches.verl.multi_turn_returns.effect import EFFECT

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
