"""Sums gradients of norms that all heads of a gated delta net share over the ranks that have the heads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


def _norms(chunk: Any) -> list[tuple[str, Any]]:
    """Return the parameters of these norms, under a name of those that are summed without conditions."""
    from overlay.patches.megatron.gated_norm_over_tp.effect import EFFECT

    found = [
        (f"{number}.k_layernorm", parameter)
        for number, layer in enumerate(chunk.modules())
        if any(one.__module__.startswith("megatron.core.ssm.gated_delta_net") for one in type(layer).__mro__)
        for parameter in layer.out_norm.parameters()
    ]
    EFFECT.changed += len(found)
    return found


def make_allreduce(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build the function that sums gradients over tensor parallel ranks.

    By upstream's own means, which know of every kind of gradient: it is shown nothing but these norms.
    """

    @functools.wraps(original)
    def _allreduce_non_tensor_model_parallel_grads(model: Any, config: Any, tp_group: Any = None) -> None:
        original(model, config, tp_group)
        # With sequence parallelism they are marked, and have been summed.
        if config.sequence_parallel:
            return
        shown = [
            SimpleNamespace(ddp_config=chunk.ddp_config, named_parameters=functools.partial(_norms, chunk))
            for chunk in model
        ]
        original(shown, SimpleNamespace(sequence_parallel=False, qk_layernorm=True), tp_group)

    return _allreduce_non_tensor_model_parallel_grads
