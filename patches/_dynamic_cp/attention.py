"""Attention in the context parallel group of its micro-batch, on a Megatron that has the static one only.

A micro-batch names its group in `packed_seq_params`. Released Megatron-Core hands it to Transformer Engine's
attention, and computes rotary positions of the same rows with the group that was set up at the start.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

#: Mark of every `Attention.forward` made here: without it, or Megatron's own, nothing may start.
MARK = "__overlay_dynamic_cp_attention__"


def make_attention_forward(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `Attention.forward`: the original, in the group that `packed_seq_params` names.

    The original looks up its group in `self.pg_collection`, which all layers share. So this layer gets a copy
    with the other group, for as long as the call lasts. Recomputation calls this again with the same group.
    """
    import copy
    from functools import wraps
    from inspect import signature

    statics = _StaticGroups()
    place = list(signature(original).parameters).index("packed_seq_params") - 1

    @wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        positional = len(args) > place
        params = args[place] if positional else kwargs.get("packed_seq_params")
        group = getattr(params, "cp_group", None)
        own, core = self.pg_collection, self.core_attention
        statics.put_back(core)
        if group is not None:
            self.pg_collection = copy.copy(own)
            self.pg_collection.cp = group
            params = statics.leave(core, params)
            if positional:
                args = (*args[:place], params, *args[place + 1 :])
            else:
                kwargs["packed_seq_params"] = params
        try:
            return original(self, *args, **kwargs)
        finally:
            if group is not None:
                self.pg_collection = own
                statics.put_back(core)

    setattr(forward, MARK, True)
    return forward


class _StaticGroups:
    """The groups that Transformer Engine's attention was built with, while it works in others.

    Megatron sets the micro-batch's group on it before each call, and never the old one again. If the
    attention alone is recomputed, the backward pass sets it too, so it is looked at before each call.
    """

    def __init__(self) -> None:
        from weakref import WeakKeyDictionary

        #: For each attention what to set, and the groups that it may be found in instead.
        self._known: WeakKeyDictionary[Any, tuple[tuple[Any, ...], list[Any]]] = WeakKeyDictionary()

    def leave(self, core: Any, packed_seq_params: Any) -> Any:
        """Note the group before it is left for that of a micro-batch, and return what is to be told."""
        if not hasattr(core, "set_context_parallel_group"):
            return packed_seq_params
        group = packed_seq_params.cp_group
        if packed_seq_params.local_cp_size == 1:
            # A size without a group means none at all. A group of one rank would be taken for a real one.
            from dataclasses import replace

            packed_seq_params, group = replace(packed_seq_params, cp_group=None), None
        else:
            _ensure_stream(core)
        groups = (core.cp_group, core.cp_global_ranks, core.cp_stream, core.cp_comm_type)
        own, others = self._known.setdefault(core, (groups, []))
        if group is not own[0] and not any(group is other for other in others):
            others.append(group)
        return packed_seq_params

    def put_back(self, core: Any) -> None:
        """Set the group again that the attention was built with, unless somebody gave it another since."""
        if not self._known or core not in self._known:
            return
        own, others = self._known[core]
        if any(core.cp_group is other for other in others):
            core.set_context_parallel_group(*own)
        elif core.cp_group is not own[0]:
            del self._known[core]


def _ensure_stream(core: Any) -> None:
    """Make the stream of the exchange, which Megatron makes only where context parallelism is static."""
    import torch

    owner: Any = next((cls for cls in type(core).__mro__ if "cp_stream" in vars(cls)), None)
    if owner is not None and owner.cp_stream is None:
        owner.cp_stream = torch.cuda.Stream()


def confirm_attention() -> None:
    """Raise `NotImplementedError` unless rotary positions are computed in the group of the micro-batch."""
    from megatron.core.transformer.attention import Attention

    forward = Attention.forward
    if getattr(forward, MARK, False):
        return
    # Megatron's development branch reads both in this very function.
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    if {"local_cp_size", "cp_group"} <= set(names):
        return
    raise NotImplementedError(
        "dynamic_context_parallel=True needs rotary positions in the context parallel group of the "
        "micro-batch, and this Megatron computes them in the static group, which is wrong on each rank. "
        "Select megatron.dynamic-cp-names, and call overlay.enable() before anything else patches "
        "Attention.forward; or set dynamic_context_parallel=False."
    )
