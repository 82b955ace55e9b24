"""NCCL's collectives by gloo, as far as gloo needs help (see `cuda_on_cpu`).

A backend that is named for NCCL becomes gloo, options of NCCL and the devices of a barrier are dropped, and
an average, which gloo lacks, is a sum that is divided. Sizes of an exchange that Megatron would have fetched
from the device are numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def replacements() -> list[tuple[Any, str, object]]:
    """Return what to replace: the owner, the name, and the stand-in."""
    return [
        (dist, "init_process_group", _by_gloo(dist.init_process_group)),
        (dist, "new_group", _by_gloo(dist.new_group)),
        (dist, "new_subgroups_by_enumeration", _by_gloo(dist.new_subgroups_by_enumeration)),
        (dist, "barrier", _without_devices(dist.barrier)),
        (dist, "all_reduce", _averaging(dist.all_reduce)),
        (dist, "all_to_all_single", _with_numbers(dist.all_to_all_single)),
    ]


def _by_gloo(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes process groups, with gloo for whatever backend has NCCL in it."""
    from functools import wraps
    from inspect import signature

    parameters = signature(make)
    # As slime's diff of Megatron wraps it: the names are those of the keywords.
    anything = any(one.kind is one.VAR_KEYWORD for one in parameters.parameters.values())

    @wraps(make)  # with its parameters, for the next context inside this one
    def make_by_gloo(*args: Any, **kwargs: Any) -> Any:
        places, given = (args, kwargs) if anything else ((), parameters.bind(*args, **kwargs).arguments)
        if "nccl" in str(given.get("backend") or "").lower():
            given["backend"] = "gloo"
            given.pop("pg_options", None)
        if "device_id" in given:
            given["device_id"] = None
        return make(*places, **given)

    return make_by_gloo


def _without_devices(barrier: Callable[..., Any]) -> Callable[..., Any]:
    """Return `barrier`, for which gloo takes no devices."""

    def barrier_without_devices(
        group: Any = None, async_op: bool = False, device_ids: Any = None, **more: Any
    ) -> Any:
        del device_ids
        return barrier(group=group, async_op=async_op, **more)

    return barrier_without_devices


def _averaging(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return `all_reduce` with the average that gloo does not offer: a sum, divided."""

    def averaging_all_reduce(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if op != dist.ReduceOp.AVG:
            return all_reduce(tensor, op=op, group=group, async_op=async_op)
        if async_op:
            msg = "the CPU stand-in averages synchronously only; call all_reduce with async_op=False"
            raise NotImplementedError(msg)
        all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        tensor.div_(dist.get_world_size(group))
        return None

    return averaging_all_reduce


def _with_numbers(all_to_all_single: Callable[..., Any]) -> Callable[..., Any]:
    """Return `all_to_all_single`, which takes sizes as numbers also where they are still in a tensor.

    Megatron makes numbers of those that are on the device, and finds none there.
    """

    def numbers(sizes: Any) -> Any:
        return sizes.tolist() if isinstance(sizes, torch.Tensor) else sizes

    def all_to_all_single_with_numbers(
        output: Any,
        input: Any,  # noqa: A002 - torch's name for it
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        return all_to_all_single(
            output, input, numbers(output_split_sizes), numbers(input_split_sizes), group, async_op
        )

    return all_to_all_single_with_numbers
