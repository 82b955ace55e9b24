"""`megatron.moe-aux-scale`: auxiliary losses of a router weigh what their coefficients say, in every layout.

Loss and coefficient are both multiplied by what is missing of the gradient: it grows, and what is reported,
their quotient, stays. Where that is one rank's, Megatron's tracker is told to average it.
"""

from contextvars import ContextVar
from copy import copy
from inspect import signature
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import Figure, effect
from overlay.patch import Patch, around, one_target, replaced, variant

_ROUTER = "megatron.core.transformer.moe.router:TopKRouter"
_ATTACH = f"{_ROUTER}.attach_and_log_load_balancing_loss"
_Z_LOSS = f"{_ROUTER}.apply_z_loss"
# With a padding mask it returns the tokens of all ranks for those of one: that is relied on.
_COUNT = "megatron.core.transformer.moe.moe_utils:get_tokens_per_expert_and_token_count"
# By what the schedule scales the losses of all routers decides what is missing, and is a line of either.
_STEP = "megatron.core.pipeline_parallel.schedules:forward_step"
_CALC = f"{_STEP}_calc_loss"
# What averages the report over the group that it is told.
_REDUCE = "megatron.core.transformer.moe.moe_utils:reduce_aux_losses_tracker_across_ranks"
_SYNC = "megatron.core.transformer.moe.moe_logging:MoEMetricsTracker._sync_metrics"
EFFECT = effect(
    __name__,
    "loss",
    Figure(name="factor", says="the most by which one would have been too small", combine="max"),
    did="scaled",
    then="without it up to {factor} times too small",
)
#: How many sequences the micro-batch has whose loss of sequences is computed.
_SEQUENCES: ContextVar[int] = ContextVar("sequences", default=1)


def _factor(router: Any, *, context: bool) -> int:
    """Return by how much a loss of this router is too small.

    With per-token loss the gradient is divided by the tokens of all ranks, and the loss was multiplied by
    those of one: the ranks of a batch, tensor and context parallel, are missing. Without, it is averaged over
    context parallel ranks, each of which has its part of it: the schedule makes up for that from 0.16 on, and
    before with `context`.
    """
    factor = 1
    if router.calculate_per_token_loss:
        factor = _size(router, "tp_cp_group", "get_tensor_and_context_parallel_world_size")
    elif context:
        factor = _size(router, "cp_group", "get_context_parallel_world_size")
    EFFECT.calls += 1
    EFFECT.changed += factor > 1
    EFFECT.factor = max(EFFECT.factor, factor)
    return factor


def _size(router: Any, group: str, getter: str) -> int:
    """Return the size of a router's group, or of Megatron's where it has none of its own, as in 0.12."""
    from megatron.core import parallel_state

    own = getattr(router, group, None)
    return int(getattr(parallel_state, getter)() if own is None else own.size())


def _scaled(original: Any, router: Any, args: Any, kwargs: Any, *, coefficient: str, factor: int) -> Any:
    """Call with a copy of the router's settings, in which one coefficient is multiplied."""
    before = router.config
    if factor == 1:
        return original(router, *args, **kwargs)
    router.config = copy(before)
    if (value := getattr(before, coefficient)) is not None:
        setattr(router.config, coefficient, value * factor)
    try:
        return original(router, *args, **kwargs)
    finally:
        router.config = before


def _log(name: str, group: Any) -> None:
    """Have what is logged under a name averaged over a group, as Megatron's trackers know it.

    There is nothing under it yet where no loss has been computed, as in an evaluation.
    """
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import moe_utils

    if hasattr(moe_utils, "get_moe_metrics_tracker"):  # from 0.18 on
        entry = moe_utils.get_moe_metrics_tracker().metrics.get(name)
        if entry is not None:
            entry.avg_group = group
        return
    getter = "get_moe_layer_wise_logging_tracker"  # in 0.12 that of Megatron's state
    tracker = getattr(moe_utils if hasattr(moe_utils, getter) else parallel_state, getter)()
    if name in tracker:
        tracker[name]["avg_group"] = group


def _z_loss(*, context: bool) -> Any:
    @around
    def apply_z_loss(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        from megatron.core import parallel_state

        # What is reported is divided by the coefficient, and so does not grow.
        factor = _factor(self, context=context)
        logits = _scaled(original, self, args, kwargs, coefficient="moe_z_loss_coeff", factor=factor)
        # It is the mean over this rank's tokens: that over all is the mean of all ranks, as from 0.19 on.
        ranks = getattr(self, "tp_dp_cp_group", None)
        if ranks is None:
            ranks = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
        _log("z_loss", ranks)
        return logits

    return apply_z_loss


@around
def apply_loss(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Scale in 0.12 and 0.13, which read the coefficient there, and log one data parallel rank's loss."""
    from megatron.core import parallel_state

    factor = _factor(self, context=True)
    activation = _scaled(original, self, args, kwargs, coefficient="moe_aux_loss_coeff", factor=factor)
    _log("load_balancing_loss", parallel_state.get_data_parallel_group())
    return activation


def _attach(*, context: bool) -> Any:
    """Return what scales in 0.14 to 0.18.

    From 0.16 on it is told how many tokens count: a number where all do, which is that of one sequence if the
    loss is that of sequences. Where there is a padding mask it is told a tensor, which an all-reduce has
    overwritten with the number of all ranks of the loss: what one process has, but for the sequences.
    """

    @around
    def attach(
        original: Any,
        self: Any,
        activation: Any,
        aux_loss_coeff: Any,
        aux_loss: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        count = kwargs.get("valid_token_count")
        if count is None or isinstance(count, int):
            factor = _factor(self, context=context)
            if count is not None:
                kwargs["valid_token_count"] = None  # all rows of the activation count
        else:
            factor = _SEQUENCES.get() if self.calculate_per_token_loss else 1
        return original(self, activation, aux_loss_coeff * factor, aux_loss * factor, *args, **kwargs)

    return attach


@around
def sequences(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Note how many sequences a micro-batch of 0.16 to 0.18 has."""
    token = _SEQUENCES.set(int(signature(original).bind(*args, **kwargs).arguments["bsz"]))
    try:
        return original(*args, **kwargs)
    finally:
        _SEQUENCES.reset(token)


@around
def attach_masked(
    original: Any,
    self: Any,
    activation: Any,
    aux_loss_coeff: Any,
    aux_loss: Any,
    name: str,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Scale in 0.19, which multiplies what it is told by the number of ranks.

    With a padding mask it is told the number of all ranks. A loss over data parallel ranks is left as it is.
    """
    told = kwargs.get("valid_token_count")
    masked = told is not None and not isinstance(told, int) and not name.startswith("global")
    share = 1 / _factor(self, context=False) if masked else 1
    return original(self, activation, aux_loss_coeff * share, aux_loss * share, name, *args, **kwargs)


_ATTACHED, _ATTACHED_CP = (replaced(_ATTACH, _attach(context=context)) for context in (False, True))
_Z, _Z_CP = (replaced(_Z_LOSS, _z_loss(context=context)) for context in (False, True))
_NOTED = replaced(f"{_ROUTER}._apply_seq_aux_loss", sequences)

PATCH = Patch(
    id="megatron.moe-aux-scale",
    summary="MoE routers' auxiliary and z-losses weigh what their coefficients say",
    why="The gradient of a router's auxiliary losses depends on the layout of the ranks. With "
    "calculate_per_token_loss it is too small by the tensor times the context parallel size, from 0.16 on "
    "that of seq_aux_loss by the micro-batch size as well, and from 0.19 on too large with a padding mask. "
    "Without it, it is too small by the context parallel size before 0.16. What is logged is one data "
    "parallel rank's loss before 0.14, and one rank's z-loss before 0.19. With the patch both are those of "
    "one process: scale the coefficients to keep the balance of a running job. The gradient of "
    "global_aux_loss still lacks the data parallel size, and the report of a z-loss with a padding mask "
    "stays as it is.",
    changes=("numbers",),
    met="moe_aux_loss_coeff or moe_z_loss_coeff with calculate_per_token_loss and tensor or context "
    "parallelism (before 0.19; later with a padding mask), or without it and with context parallelism "
    "(before 0.16). The report is off with data parallelism too (before 0.14; a z-loss in 0.16 and 0.17).",
    opt_in=True,
    evidence="Takes the weight of one process for the coefficient. A running job may have chosen it against "
    "the gradient that it got.",
    upstream=(
        "NVIDIA/Megatron-LM#5047",
        "NVIDIA/Megatron-LM#2217",
        "NVIDIA/Megatron-LM#5798",
        "NVIDIA/Megatron-LM#7481",
        "NVIDIA/Megatron-LM#7452",
    ),
    targets=one_target(
        MEGATRON,
        variant("0.12", replaced(f"{_ROUTER}.apply_load_balancing_loss", apply_loss), _Z_CP, _STEP, _REDUCE),
        variant("0.14", _ATTACHED_CP, _Z_CP, _CALC, _REDUCE),
        variant("before 0.16", _ATTACHED, _Z, _CALC, _REDUCE),
        variant("0.16", _ATTACHED, _NOTED, _Z, _COUNT, _CALC, _REDUCE),
        variant("0.18", _ATTACHED, _NOTED, _Z, _COUNT, _CALC, _SYNC),
        variant("0.19", replaced(_ATTACH, attach_masked), _COUNT),
    ),
)
