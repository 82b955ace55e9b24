"""Scales the auxiliary losses of a router by what the schedule and the division by tokens leave out.

What is logged of them stays the mean of one process, or becomes it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any

#: How many sequences the micro-batch has whose loss of sequences is computed.
_SEQUENCES: ContextVar[int] = ContextVar("sequences", default=1)


def _factor(router: Any, *, context: bool) -> int:
    """Return by how much a loss of this router is too small.

    With per-token loss the gradient is divided by the tokens of all ranks, and the loss was multiplied by
    those of one: the ranks of a batch, tensor and context parallel, are missing. Without, it is averaged over
    context parallel ranks, each of which has its part of it: the schedule makes up for that from 0.16 on, and
    before with `context`.
    """
    from overlay.patches.megatron.moe_aux_scale import EFFECT

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


def _scaled(router: Any, name: str, factor: int, call: Callable[[], Any]) -> Any:
    """Call with a copy of the router's settings, in which one coefficient is multiplied."""
    before = router.config
    if factor == 1:
        return call()
    router.config = copy(before)
    if (value := getattr(before, name)) is not None:
        setattr(router.config, name, value * factor)
    try:
        return call()
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


def _all_ranks(router: Any) -> Any:
    """Return the group of all ranks that have tokens for this router."""
    from megatron.core import parallel_state

    own = getattr(router, "tp_dp_cp_group", None)
    if own is not None:
        return own
    return parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)


def _make_z_loss(original: Callable[..., Any], *, context: bool) -> Callable[..., Any]:
    @wraps(original)
    def apply_z_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        # What is reported is divided by the coefficient, and so does not grow.
        factor = _factor(self, context=context)
        logits = _scaled(self, "moe_z_loss_coeff", factor, lambda: original(self, *args, **kwargs))
        # It is the mean over this rank's tokens: that over all is the mean of all ranks, as from 0.19 on.
        _log("z_loss", _all_ranks(self))
        return logits

    return apply_z_loss


def make_z_loss(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap `apply_z_loss` where the schedule knows of context parallelism."""
    return _make_z_loss(original, context=False)


def make_z_loss_cp(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap `apply_z_loss` where it does not."""
    return _make_z_loss(original, context=True)


def make_apply_cp(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the `apply_load_balancing_loss` of 0.12 and 0.13, which reads its coefficient itself.

    What is logged is the loss of one data parallel rank there.
    """

    @wraps(original)
    def apply_load_balancing_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        from megatron.core import parallel_state

        factor = _factor(self, context=True)
        activation = _scaled(self, "moe_aux_loss_coeff", factor, lambda: original(self, *args, **kwargs))
        _log("load_balancing_loss", parallel_state.get_data_parallel_group())
        return activation

    return apply_load_balancing_loss


def make_attach_cp(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap `attach_and_log_load_balancing_loss` of 0.14 and 0.15."""
    return _make_attach(original, context=True)


def make_attach_rc(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the same where the schedule knows of context parallelism."""
    return _make_attach(original, context=False)


def _make_attach(original: Callable[..., Any], *, context: bool) -> Callable[..., Any]:
    @wraps(original)
    def attach_and_log_load_balancing_loss(
        self: Any, activation: Any, aux_loss_coeff: float, aux_loss: Any, *args: Any, **kwargs: Any
    ) -> Any:
        factor = _factor(self, context=context)
        return original(self, activation, aux_loss_coeff * factor, aux_loss * factor, *args, **kwargs)

    return attach_and_log_load_balancing_loss


def make_attach(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the same of 0.16 to 0.18, which is told how many tokens count.

    It is told a number where all do, which is that of one sequence if the loss is that of sequences. Where
    there is a padding mask it is told a tensor, which an all-reduce has overwritten with the number of all
    ranks of the loss: what one process has, but for the sequences.
    """

    @wraps(original)
    def attach_and_log_load_balancing_loss(
        self: Any, activation: Any, aux_loss_coeff: float, aux_loss: Any, *args: Any, **kwargs: Any
    ) -> Any:
        count = kwargs.get("valid_token_count")
        if count is None or isinstance(count, int):
            kwargs["valid_token_count"] = None  # all rows of the activation count
            factor = _factor(self, context=False)
        else:
            factor = _SEQUENCES.get() if self.calculate_per_token_loss else 1
        return original(self, activation, aux_loss_coeff * factor, aux_loss * factor, *args, **kwargs)

    return attach_and_log_load_balancing_loss


def make_sequences(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap `_apply_seq_aux_loss` of 0.16 to 0.18, which knows how many sequences a micro-batch has."""
    parameters = signature(original)

    @wraps(original)
    def _apply_seq_aux_loss(*args: Any, **kwargs: Any) -> Any:
        token = _SEQUENCES.set(int(parameters.bind(*args, **kwargs).arguments["bsz"]))
        try:
            return original(*args, **kwargs)
        finally:
            _SEQUENCES.reset(token)

    return _apply_seq_aux_loss


def make_attach_masked(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the same of 0.19, which multiplies what it is told by the number of ranks.

    With a padding mask it is told the number of all ranks. A loss over data parallel ranks is left as it is.
    """

    @wraps(original)
    def attach_and_log_load_balancing_loss(
        self: Any, activation: Any, aux_loss_coeff: float, aux_loss: Any, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        told = kwargs.get("valid_token_count")
        masked = told is not None and not isinstance(told, int) and not name.startswith("global")
        share = 1 / _factor(self, context=False) if masked else 1
        return original(self, activation, aux_loss_coeff * share, aux_loss * share, name, *args, **kwargs)

    return attach_and_log_load_balancing_loss
