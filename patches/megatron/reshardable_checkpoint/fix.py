"""What takes the place of the methods that save and load an optimizer's state parameter by parameter."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from overlay.errors import OverlayError


class ShiftedCheckpointError(OverlayError):
    """A checkpoint whose optimizer state is that of other parameters."""


class _Compact:
    """A flat tensor without the padding of buckets, from which slices are taken as if it were there."""

    def __init__(self, tensor: Any, before: dict[int, int]) -> None:
        """`before` has the padding, in elements, before each place at which a parameter begins."""
        self._tensor, self._before = tensor, before

    def __getitem__(self, place: slice) -> Any:
        gone = self._before[place.start]
        return self._tensor[place.start - gone : place.stop - gone]


def _padding(buffer: Any) -> dict[int, int]:
    """Return how many elements of padding end buckets before the one of each parameter, by its start."""
    ends = [bucket.grad_data.numel() - bucket.numel_unpadded for bucket in buffer.buckets]
    before = [0, *itertools.accumulate(ends)]
    return {start: before[bucket] for start, _, bucket in buffer.param_index_map.values()}


def make_save(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `sharded_param_state_fully_reshardable`, which gets tensors that know of their padding."""
    import torch

    from overlay.patches.megatron.reshardable_checkpoint.effect import EFFECT

    def sharded_param_state_fully_reshardable(self: Any, *args: Any, **options: Any) -> Any:
        gather = self.get_parameter_state_dp_zero

        def gathered(*some: Any, **more: Any) -> Any:
            state = gather(*some, **more)
            for number, buffer in enumerate(self.buffers) if state is not None else ():
                before = _padding(buffer)
                shift = max(before.values(), default=0)
                EFFECT.calls += 1
                EFFECT.changed += shift > 0
                EFFECT.padding = max(EFFECT.padding, shift)
                state[number] = {
                    dtype: {
                        key: _Compact(value, before) if isinstance(value, torch.Tensor) else value
                        for key, value in tensors.items()
                    }
                    for dtype, tensors in state[number].items()
                }
            return state

        self.get_parameter_state_dp_zero = gathered
        try:
            return original(self, *args, **options)
        finally:
            del self.get_parameter_state_dp_zero

    return functools.wraps(original)(sharded_param_state_fully_reshardable)


def make_load(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `load_state_dict`, which refuses what was saved shifted, before anything is loaded."""

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> Any:
        ours = state_dict.get("param_state_sharding_type") == "fully_reshardable"
        states = (state_dict.get("param_state") if ours else None) or {}
        numbers = iter(range(len(states)))
        for buffer in self.buffers if states else ():
            if shifted := _shifted(_masters(buffer, numbers, states)):
                raise ShiftedCheckpointError(
                    f"the optimizer state in this checkpoint is shifted: the master weights of {shifted} "
                    "parameters are not the weights that were loaded, and those of the first bucket are. It "
                    "was saved by a Megatron before NVIDIA/Megatron-LM#5077 without this patch, "
                    "and cannot be mended. Load the weights alone (--no-load-optim)"
                )
        return original(self, state_dict)

    return functools.wraps(original)(load_state_dict)


def _masters(buffer: Any, numbers: Iterator[int], states: dict[int, Any]) -> Iterator[tuple[int, Any, Any]]:
    """Yield the bucket, the weights and the saved master weights of each parameter of a buffer."""
    import torch

    for (parameter, (_, _, bucket)), number in zip(buffer.param_index_map.items(), numbers, strict=False):
        state = states.get(number, {})
        master = state.get("param", state.get("fp32_param"))
        # Quantised weights are something else than their master weights rounded.
        plain = type(parameter) is torch.nn.Parameter and parameter.dtype.itemsize > 1
        if plain and master is not None and master.numel() == parameter.numel():
            yield bucket, parameter.detach(), master


def _shifted(masters: Iterator[tuple[int, Any, Any]]) -> int:
    """Return how many parameters have mostly other master weights, 0 if the state is not shifted.

    What says so are the elements: after the first bucket most of them are others, and in it most are not.
    """
    import torch

    count, others, elements = 0, [0, 0], [0, 0]
    for bucket, weights, master in masters:
        given = master.detach().reshape(weights.shape).to(weights.device)
        kind = torch.finfo(weights.dtype)
        # Twice what rounding to bfloat16 changes, and near zero twice the distance of two numbers.
        far = (given - weights).abs() > 2**-7 * weights.abs() + 2 * kind.tiny * kind.eps
        others[bucket > 0] += (off := int(far.sum()))
        elements[bucket > 0] += far.numel()
        count += bucket > 0 and 2 * off > far.numel()
    first, later = (2 * off > all_ for off, all_ in zip(others, elements, strict=True))
    return count if elements[0] and later and not first else 0
