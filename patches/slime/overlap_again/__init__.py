"""`slime.overlap-again`: a second rollout trains with overlapped gradient reduction and parameter gathers."""

from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_MODEL = "slime.backends.megatron_utils.model"
#: Of Megatron's configuration, what slime sets for the time of a rollout's training.
_SET = ("no_sync_func", "grad_sync_func", "param_sync_func")
EFFECT = effect(__name__, "rollout", did="put Megatron's configuration back after")


@around
def train(original: Any, rollout_id: int, model: Any, *given: Any, **named: Any) -> None:
    """Train on a rollout, and leave the configuration of the model as it was."""
    from megatron.core.utils import get_model_config

    config = get_model_config(model[0])
    before = {name: getattr(config, name) for name in _SET}
    EFFECT.calls += 1
    try:
        original(rollout_id, model, *given, **named)
    finally:
        EFFECT.changed += any(getattr(config, name) is not value for name, value in before.items())
        for name, value in before.items():
            setattr(config, name, value)


@around
def disable_forward_pre_hook(original: Any, model_chunks: Any, param_sync: bool = True) -> None:
    """Take out the hooks that wait for parameters, where they are in: slime takes them out after training."""
    original([chunk for chunk in model_chunks if chunk.remove_forward_pre_hook_handles], param_sync)


PATCH = Patch(
    id="slime.overlap-again",
    summary="--overlap-grad-reduce and --overlap-param-gather work beyond the first rollout",
    why="With --overlap-grad-reduce the second rollout ends in AssertionError, because slime finds what the "
    "first one left in Megatron's configuration. Behind it lies a KeyError of --overlap-param-gather: slime "
    "takes out hooks that it has taken out before. With the patch each rollout leaves the configuration as "
    "it was, and hooks are taken out once.",
    changes=("crashes",),
    met="--overlap-grad-reduce, and more than one rollout.",
    upstream=("THUDM/slime#1779", "THUDM/slime#1857", "THUDM/slime#2066"),
    evidence="On two ranks the weights after three rollouts are those of Adam in float64, on each rank.",
    targets=one_target(
        SLIME,
        variant(
            "0.1 to 0.3",
            replaced(f"{_MODEL}:train", train),
            replaced(f"{_MODEL}:disable_forward_pre_hook", disable_forward_pre_hook),
        ),
    ),
)
