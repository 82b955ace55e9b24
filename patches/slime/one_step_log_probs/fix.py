"""What tells slime how long the responses are where it has no log-probabilities to take that from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

#: What slime takes the lengths from.
_SOURCES = ("log_probs", "rollout_log_probs", "values")


def make_train_actor(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the training of a rollout: slime's own, with advantages for want of log-probabilities too."""
    from overlay.patches._rebound import rebound
    from overlay.patches.slime.one_step_log_probs.effect import EFFECT

    def masks(rollout_data: Any) -> Iterator[Any]:
        """Give this rank's part of the mask of each response, as slime gives that of its log-probabilities.

        slime goes through them once. Then they are gone, so that nobody takes them for values of a critic.
        """
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
        rollout_data["values"] = masks(rollout_data)
        try:
            return module.compute_advantages_and_returns(args, rollout_data)
        finally:
            # On a stage before the last, slime does not look at them.
            rollout_data.pop("values", None)

    def train_actor(self: Any, rollout_id: Any, rollout_data: Any, external_data: Any = None) -> Any:
        own = rebound(original, module, compute_advantages_and_returns=compute_advantages_and_returns)
        return own(self, rollout_id, rollout_data, external_data)

    return train_actor
