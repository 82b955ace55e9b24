"""`megatron.reshardable-checkpoint`: each parameter is saved with its own optimizer state.

Saving looks parameters up by their place in a buffer, in a tensor from which the padding of buckets is gone.
While it runs, what it looks them up in takes them at the place where they are.
"""

import itertools
from collections.abc import Iterator
from typing import Any

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
    for buffer in self.buffers if states else ():
        if shifted := _shifted(_masters(buffer, numbers, states)):
            raise ShiftedCheckpointError(
                f"the optimizer state in this checkpoint is shifted: the master weights of {shifted} "
                "parameters are not the weights that were loaded, and those of the first bucket are. It "
                "was saved by a Megatron before NVIDIA/Megatron-LM#5077 without this patch, and cannot be "
                "mended. Load the weights alone (--no-load-optim)"
            )
    return original(self, state_dict)


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


PATCH = Patch(
    id="megatron.reshardable-checkpoint",
    summary="Fully reshardable checkpoints have each parameter's optimizer state, not its neighbour's",
    why="In the format fully_reshardable Megatron gathers master weights and moments without the padding at "
    "the end of buckets, and cuts parameters out by places that count it. From the second bucket on each is "
    "saved shifted into the next, and the first step after a resume replaces the weights with that. With the "
    "patch they are cut out where they are, and a checkpoint is refused whose master weights are those of "
    "the model in the first bucket alone.",
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
