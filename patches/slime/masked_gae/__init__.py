"""`slime.masked-gae`: PPO's advantages are those of a response without the tokens that nobody trains.

slime's own recursion runs on the trained tokens alone. The rewards are withheld from slime's computation,
which `slime.whiten-over-cp` wraps: it would add them to a token of the first context parallel rank.
"""

from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import Figure, effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._slime_advantages import RUN
from overlay.patches.slime.masked_gae.layout import Layout

_LOSS = "slime.backends.megatron_utils.loss"
_BATCH = "get_advantages_and_returns_batch"
_UTILS = "slime.utils.ppo_utils"
EFFECT = effect(
    __name__,
    "rollout",
    Figure(name="masked", says="tokens in it that are not trained", unit="tokens"),
    then="without it {masked} in the sums that are not trained",
)


#: While slime computes advantages by PPO, what the estimator is not passed: slime's arguments, what is known
#: of the samples, and their rewards.
_current: ContextVar[tuple[Any, Any, Any] | None] = ContextVar("overlay_slime_gae", default=None)


def _run(original: Any, args: Any, rollout_data: Any) -> Any:
    """Run slime's computation without rewards: it would put them on some token of the first rank."""
    custom = getattr(args, "custom_advantage_function_path", None)
    if args.advantage_estimator != "ppo" or custom is not None:
        return original(args, rollout_data)
    given = {**rollout_data, "rewards": []}
    token = _current.set((args, given, rollout_data.get("rewards")))
    try:
        return original(args, given)
    finally:
        _current.reset(token)
        rollout_data.update({name: value for name, value in given.items() if name != "rewards"})


def _penalties(module: Any, args: Any, data: Any) -> list[Any]:
    """Return the KL of this rank's tokens of each sample, none if it has no part in the rewards."""
    own = data.get("rollout_log_probs" if args.use_rollout_logprobs else "log_probs")
    if args.kl_coef == 0 or not own:
        return []
    pairs = zip(own, data["ref_log_probs"], strict=True)
    return [module.compute_approx_kl(*pair, kl_loss_type=args.kl_loss_type) for pair in pairs]


def make_batch(original: Any, module: Any) -> Any:
    """Wrap the estimator, over trained tokens alone. Others get advantage 0, and their value as return.

    --normalize-advantages shifts these zeros as it does all advantages. slime's loss masks them either way.
    """
    import torch
    from slime.utils import ppo_utils

    parameters = signature(original)

    @wraps(original)
    def get_advantages_and_returns_batch(*given: Any, **named: Any) -> Any:
        if (step := _current.get()) is None:
            return original(*given, **named)
        args, data, sample_rewards = step
        called = parameters.bind(*given, **named)
        called.apply_defaults()
        total_lengths, response_lengths, values_list, _rewards, gamma, lambd, chunked = called.args
        layout = Layout(total_lengths, response_lengths, data.get("max_seq_lens"))
        with torch.no_grad():
            values = layout.whole(values_list)
            kl = layout.whole(_penalties(module, args, data)) or [0.0] * len(values)
            masks = zip(data["loss_masks"], values, strict=True)
            trained = [mask.to(value.device) != 0 for mask, value in masks]
            # At least one column: of a step in which nothing is trained as well.
            shape = len(values), max([1, *(int(mask.sum()) for mask in trained)])
            table, rewards = values[0].new_zeros(2, *shape)
            rows = zip(sample_rewards, values, kl, trained, strict=True)
            masked = 0
            for row, (reward, value, penalty, mask) in enumerate(rows):
                count = int(mask.sum())
                masked += len(mask) - count
                if count == 0:
                    continue
                table[row, :count] = value[mask]
                rewards[row, :count] = (-args.kl_coef * penalty + torch.zeros_like(value))[mask]
                rewards[row, count - 1] += reward  # the last trained token gets it
            EFFECT.calls += 1
            EFFECT.changed += masked > 0
            EFFECT.masked += masked
            estimate = ppo_utils.chunked_gae if chunked else ppo_utils.vanilla_gae
            found, _ = estimate(rewards=rewards, values=table, gamma=gamma, lambd=lambd)
            advantages = []
            for row, (value, mask) in enumerate(zip(values, trained, strict=True)):
                advantages.append(torch.zeros_like(value))
                advantages[-1][mask] = found[row, : int(mask.sum())]
            returns = [one + value for one, value in zip(advantages, values, strict=True)]
        return layout.mine(advantages), layout.mine(returns)

    vars(get_advantages_and_returns_batch)[RUN] = _run
    return get_advantages_and_returns_batch


PATCH = Patch(
    id="slime.masked-gae",
    summary="PPO's advantages over trained tokens alone, with the reward on the last of them",
    why="In PPO slime estimates advantages through tokens that are not trained, of tools and observations: "
    "with lambda below 1 their values, which no loss has ever touched, enter the advantages before them, and "
    "the reward may be on one of them. Under context parallelism the reward goes to the last token of the "
    "first rank, rarely that of the response, or to none: IndexError. With the patch advantages are those of "
    "the response without these tokens, gamma and lambda count trained tokens, and the last gets the reward.",
    changes=("numbers", "crashes"),
    met="PPO with masked tokens in the responses and lambda or gamma below 1, or a reward on a masked token, "
    "or with a context parallel size above 1.",
    opt_in=True,
    upstream=("THUDM/slime#2205", "radixark/miles#1827", "radixark/miles#1720"),
    evidence="It takes one of two readings: tokens that are not trained are no steps of an episode. slime's "
    "PPO counts them, and its REINFORCE++ rewards the last trained token.",
    requires=("slime.whiten-over-cp",),
    targets=one_target(
        SLIME,
        variant(
            "0.2",
            replaced(f"{_LOSS}:{_BATCH}", make_batch),
            f"{_LOSS}:compute_approx_kl",
            "slime.backends.megatron_utils.cp_utils:slice_log_prob_with_cp",
            *(f"{_UTILS}:{name}" for name in ("vanilla_gae", "chunked_gae", "compute_approx_kl", _BATCH)),
        ),
    ),
)
