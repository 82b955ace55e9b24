"""A stand-in for CUDA that lets Megatron's and verl's distributed code run on CPU tensors under gloo.

Only what that code really asks for is replaced: where a tensor is to live, which device is current, waiting
for the device, averaging reductions (gloo has none), and how much device memory was used. Nothing here
imitates a kernel. `torch.cuda.is_available()` keeps saying no, so that every optional CUDA path stays off.
"""

from __future__ import annotations

import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


@contextlib.contextmanager
def cuda_on_cpu() -> Iterator[None]:
    """Let code that asks for CUDA tensors get CPU tensors, for as long as the context lasts.

    Everything is put back on leaving, in the reverse order, also after an exception. Contexts nest.

    Yields:
        Nothing; the stand-ins are global to the process.

    """
    import torch
    import torch.distributed as dist

    def no_wait(*_args: object, **_kwargs: object) -> None:
        """Return at once: work on a CPU tensor is done when the call returns."""

    def current_device() -> Any:
        """Return the device on which everything lives."""
        return torch.device("cpu")

    def no_memory(*_args: object, **_kwargs: object) -> int:
        """Return 0: the bytes that were allocated on a device that is not there."""
        return 0

    with contextlib.ExitStack() as undo:
        undo.enter_context(replaced(torch.cuda, "current_device", current_device))
        undo.enter_context(replaced(torch.cuda, "synchronize", no_wait))
        undo.enter_context(replaced(torch.cpu, "max_memory_allocated", no_memory))
        undo.enter_context(replaced(torch.cpu, "max_memory_reserved", no_memory))
        undo.enter_context(replaced(dist, "all_reduce", _averaging(dist.all_reduce)))
        undo.enter_context(_device_mode())
        yield


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Set `owner.name` to `value` for the context, and put the old state back exactly, absence included."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _device_mode() -> Any:
    """Return a mode under which every torch function that is told "cuda" hears "cpu"."""
    import torch
    from torch.overrides import TorchFunctionMode

    cpu = torch.device("cpu")

    def moved(value: object) -> object:
        if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
            return cpu
        if isinstance(value, torch.device) and value.type == "cuda":
            return cpu
        return value

    class CpuForCuda(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Callable[..., Any],
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            del types
            given = tuple(map(moved, args))
            named = {name: moved(value) for name, value in (kwargs or {}).items()}
            if func is torch.device and cpu in (*given, *named.values()):
                return cpu  # whatever the index was
            return func(*given, **named)

    return CpuForCuda()


def _averaging(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.distributed.all_reduce` with the average that gloo does not offer: a sum, divided."""
    import torch.distributed as dist

    def averaging_all_reduce(
        tensor: Any,
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
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
