"""`slime.async-groups`: fully asynchronous rollouts train on every group that was generated, on old ones too.

A rollout empties the queue of groups that are done and keeps as many as it needs. It runs as it is, with a
worker that hands out no more than that. What is left stays in the queue, which must not stop the thread that
generates, so it loses its bound; and the worker gets no prompts while enough groups wait.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.async_groups.fix import make_init, make_rollout

_MODULE = "slime.rollout.fully_async_rollout"
_WORKER = f"{_MODULE}:AsyncRolloutWorker"

PATCH = Patch(
    id="slime.async-groups",
    summary="Fully asynchronous rollouts train on every group that was generated",
    why=(
        "A fully asynchronous rollout of slime 0.3 takes all groups that are done out of the queue and "
        "throws away those beyond --rollout-batch-size, by their index: generated, scored, and their prompts "
        "used up. Prompts that come late in the data are lost most. With the patch they wait, and are "
        "trained on, those that were done first. The worker takes no new prompts while as many groups wait "
        "as it generates at once, as in slime after 0.3.1. That makes groups older: where generation is "
        "faster than training, up to 2 C / B updates old, for C groups at once and B in a rollout, where "
        "those of slime alone are one update old. Old log-probabilities are recomputed by default, so "
        "nothing corrects for it."
    ),
    changes=("numbers", "speed"),
    opt_in=True,
    met="--rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async.",
    upstream=("THUDM/slime#2238",),
    evidence=(
        "It trades age for waste: slime alone trains on groups that are one update old and throws the rest "
        "away. The queue is that of slime's commit 7e02052 (#2238, after 0.3.1)."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.3",
            replaced(f"{_MODULE}:_generate_rollout_async", make_rollout),
            replaced(f"{_WORKER}.__init__", make_init),
            # That it asks for prompts one by one, and goes on where there are none.
            f"{_WORKER}._loop",
        ),
        tells=(_MODULE,),
    ),
)
