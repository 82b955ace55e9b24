"""`slime.masked-gae`: PPO's advantages are those of a response without the tokens that nobody trains.

slime estimates advantages over all tokens of a response, those of tools and observations too, whose values
nobody trains, as the loss of the critic leaves them out. Here the estimator, by its name in the loss, takes
the trained tokens alone, runs slime's own recursion on them and puts the result back. The masks and rewards
that it is not passed come from `slime.whiten-over-cp`, which stands around the caller
(`patches/_slime_advantages.py`): there the rewards are withheld from slime, which would add them to a token
of the first context parallel rank, whether or not the last token of the response is there, or any.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.masked_gae.fix import make_batch

_LOSS = "slime.backends.megatron_utils.loss"
_BATCH = "get_advantages_and_returns_batch"
_CONTEXT = "slime.backends.megatron_utils.cp_utils"
_UTILS = "slime.utils.ppo_utils"

#: What is called, and not replaced.
_SHARED = (
    f"{_CONTEXT}:slice_log_prob_with_cp",
    f"{_UTILS}:vanilla_gae",
    f"{_UTILS}:chunked_gae",
    f"{_UTILS}:compute_approx_kl",
    # What the import stands for, and so what is replaced in truth.
    f"{_UTILS}:{_BATCH}",
)

PATCH = Patch(
    id="slime.masked-gae",
    summary="PPO's advantages over trained tokens alone, with the reward on the last of them",
    why=(
        "In PPO slime runs the advantage estimation through tokens that are not trained, of tools and "
        "observations: with lambda below 1 their values, which no loss has ever touched, enter the "
        "advantages of the tokens before them, and the reward may sit on one of them. Under context "
        "parallelism the reward goes to the last token that the first rank has, which is rarely that of the "
        "response, or to none: IndexError. With the patch the advantages are those of the response without "
        "these tokens, gamma and lambda count trained tokens, and the reward is that of the last of them, "
        "wherever it is. This is one reading of two: the other, slime's, takes observations for steps of the "
        "episode that are discounted too. slime's own REINFORCE++ puts the reward on the last trained token, "
        "and its PPO has been as it is since it came, so the patch is selected by its name only."
    ),
    changes=("numbers", "crashes"),
    met=(
        "PPO with masked tokens in the responses and lambda or gamma below 1, or a reward on a masked token, "
        "or with a context parallel size above 1."
    ),
    opt_in=True,
    upstream=("THUDM/slime#2205", "radixark/miles#1827", "radixark/miles#1720"),
    evidence=(
        "It takes one of two readings: tokens that are not trained are no steps of an episode. slime's PPO "
        "counts them, and its REINFORCE++ rewards the last trained token."
    ),
    requires=("slime.whiten-over-cp",),
    targets=one_target(
        SLIME,
        variant(
            "0.2",
            replaced(f"{_LOSS}:{_BATCH}", make_batch),
            f"{_LOSS}:compute_approx_kl",
            *_SHARED,
        ),
    ),
)
