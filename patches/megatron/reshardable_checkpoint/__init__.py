"""`megatron.reshardable-checkpoint`: each parameter is saved with its own optimizer state.

Saving looks parameters up by their place in a buffer, in a tensor from which the padding of buckets is gone.
While it runs, what it looks them up in takes them at the place where they are.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from overlay import log
from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.errors import OverlayError
from overlay.patch import Patch, around, one_target, replaced, variant

_OPTIMIZER = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"
#: Reads the states in the order in which they are checked.
_READ = f"{_OPTIMIZER}.load_parameter_state_from_fully_reshardable"
#: From which places of the tensors it leaves the padding out is what is mended.
_GATHER = f"{_OPTIMIZER}.get_parameter_state_dp_zero"
EFFECT = effect(__name__, "buffer", did="saved unshifted")
#: How many master weights in a row are looked for among the weights.
_RUN = 16


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


@around
def save(original: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Save, with parameters cut out of tensors that know of their padding."""
    import torch

    gather = self.get_parameter_state_dp_zero

    def gathered(*some: Any, **more: Any) -> Any:
        state = gather(*some, **more)
        for number, buffer in enumerate(self.buffers) if state is not None else ():
            before = _padding(buffer)
            EFFECT.calls += 1
            EFFECT.changed += any(before.values())
            for tensors in state[number].values():
                for key, value in tensors.items():
                    if isinstance(value, torch.Tensor):
                        tensors[key] = _Compact(value, before)
        return state

    self.get_parameter_state_dp_zero = gathered
    try:
        return original(self, *args, **options)
    finally:
        del self.get_parameter_state_dp_zero


@around
def load(original: Any, self: Any, state_dict: dict[str, Any]) -> Any:
    """Refuse what was saved shifted, before anything is loaded."""
    ours = state_dict.get("param_state_sharding_type") == "fully_reshardable"
    states = (state_dict.get("param_state") if ours else None) or {}
    numbers = iter(range(len(states)))
    others = moved = 0
    for buffer in self.buffers if states else ():
        for weights, master in _masters(buffer, numbers, states):
            if 2 * int(_far(master, weights).sum()) > weights.numel():
                others += 1
                moved += _is_moved(master, weights)
    if moved:
        raise ShiftedCheckpointError(
            f"the optimizer state in this checkpoint is shifted: the master weights of {others} parameters "
            f"are not the weights that were loaded, and those of {moved} are in them further on. It was "
            "saved by a Megatron before NVIDIA/Megatron-LM#5077 without this patch, and cannot be mended. "
            "Load the weights alone (--no-load-optim)"
        )
    if others:
        log.warning(
            f"{PATCH.id}: in this checkpoint the master weights of {others} parameters are not the weights "
            "that were loaded, and the first step puts them in their place. Whether they were saved shifted, "
            "or the weights changed since, can't be told"
        )
    return original(self, state_dict)


def _masters(buffer: Any, numbers: Iterator[int], states: dict[int, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the weights and the saved master weights of each parameter of a buffer, both flat."""
    import torch

    for parameter, number in zip(buffer.param_index_map, numbers, strict=False):
        state = states.get(number, {})
        master = state.get("param", state.get("fp32_param"))
        # Quantised weights are something else than their master weights rounded.
        plain = type(parameter) is torch.nn.Parameter and parameter.dtype.itemsize > 1
        if plain and master is not None and master.numel() == parameter.numel():
            yield parameter.detach().flatten(), master.detach().flatten().to(parameter.device)


def _far(master: Any, weights: Any) -> Any:
    """Return which master weights are others than the weights, of whatever type these were when saved."""
    import torch

    kind = torch.finfo(weights.dtype)
    # Twice what rounding to bfloat16 changes, and near zero twice the distance of two numbers.
    return (master - weights).abs() > 2**-7 * weights.abs() + 2 * kind.tiny * kind.eps


def _is_moved(master: Any, weights: Any) -> bool:
    """Return whether most runs of master weights are in the weights, further on, and none in other places.

    By how many places depends on the buckets of the job that saved, and on its slices of the weights.
    """
    master, ahead = master.to(weights.dtype), []
    starts = range(0, weights.numel() - _RUN, max(weights.numel() // 16, 1))
    for start in starts:
        run = master[start : start + _RUN]
        # A run of few values is in many places, or in another by chance.
        if len(run.float().unique()) <= _RUN // 2:
            continue
        places = (weights[: 1 - _RUN] == run[0]).nonzero()
        for number in range(1, _RUN):
            places = places[weights[places + number] == run[number]]
        if len(places) == 1:
            ahead.append(int(places) > start)
    return all(ahead) and 2 * len(ahead) > len(starts)


PATCH = Patch(
    id="megatron.reshardable-checkpoint",
    summary="Fully reshardable checkpoints have each parameter's optimizer state, not its neighbour's",
    why="In the format fully_reshardable Megatron gathers master weights and moments without the padding at "
    "the end of buckets, and cuts parameters out by places that count it. From the second bucket on each is "
    "saved shifted into the next, and the first step after a resume replaces the weights with that. With the "
    "patch they are cut out where they are. A checkpoint is refused if its master weights are the model's "
    "weights of places further on, whatever the layout. If they are no weights of the model, it is loaded "
    "with a warning.",
    changes=("numbers", "safety"),
    met="Checkpoints with dist_ckpt_optim_fully_reshardable (verl 0.7.1: always) with overlap_grad_reduce, "
    "so that there are several buckets, and padding in them: a data parallel size that is no power of two, "
    "ddp_pad_buckets_for_high_nccl_busbw, or parameters whose sizes are no multiples of 128.",
    evidence="Upstream's main branch leaves out the padding on both sides (NVIDIA/Megatron-LM#5077). What is "
    "saved is compared with each parameter's own weight and moments.",
    upstream=("NVIDIA/Megatron-LM#5077",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.15",
            replaced(f"{_OPTIMIZER}.sharded_param_state_fully_reshardable", save),
            replaced(f"{_OPTIMIZER}.load_state_dict", load),
            _READ,
            _GATHER,
        ),
    ),
)
