"""Sends what the schedule cannot empty: a tensor of its own over the memory of the activation."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any


def make_p2p_ops(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap `_p2p_ops`: what is sent to the next stage keeps its memory until the send is done.

    torch holds a tensor that it sends, and the schedule frees an activation by giving the very same
    tensor other data, so that torch holds nothing. A second tensor over the same memory is not emptied. torch
    lets go of it when the send has been waited for, or is dropped.
    """
    from overlay.patches.megatron.vpp_send_before_free.effect import EFFECT

    @wraps(original)
    def _p2p_ops(*args: Any, **kwargs: Any) -> Any:
        sent = kwargs.get("tensor_send_next")
        if sent is not None:
            kwargs["tensor_send_next"] = sent.detach()
            EFFECT.changed += 1
        return original(*args, **kwargs)

    return _p2p_ops
