"""A stand-in for CUDA that lets Megatron's and verl's distributed code run on CPU tensors under gloo.

    with cuda_on_cpu():
        ...

Only what that code really asks for is replaced: where a tensor is to live, which device is current, streams
and events, random state, memory figures (`cpu_device`), and the collectives' backend (`cpu_collectives`).

Nothing here imitates a kernel. What a run under it says about time, memory, and the rounding of GPU kernels
is nothing: it says whether every rank computes what it should, and calls what the others call.
`torch.cuda.is_available()` says no all the time, so that every optional CUDA path stays off.

What a tensor is told of its device, its type and pinned memory is changed in the thread that enters the
context, and in no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from overlay.errors import OverlayError


class GpuPresentError(OverlayError):
    """There is a GPU, and nobody said that it is to be hidden."""


@contextlib.contextmanager
def cuda_on_cpu(*, force: bool = False) -> Iterator[None]:
    """Let code that asks for CUDA tensors get CPU tensors, for as long as the context lasts.

    Everything is put back on leaving, in the reverse order, also after an exception. Contexts nest. What
    a module took from `torch.cuda` by `from ... import` is replaced if Megatron is known to take it so.

    Args:
        force: Whether to go on where there is a GPU, which is not used then.

    Yields:
        Nothing; the stand-ins are global to the process.

    Raises:
        GpuPresentError: There is a GPU, and `force` is not set.

    """
    import torch

    from overlay.compat import cpu_collectives, cpu_device

    if torch.cuda.is_available() and not force:
        msg = (
            f"the CPU stand-in for CUDA would hide {torch.cuda.device_count()} GPU(s) of this machine: run "
            "on them, or say that you mean it with cuda_on_cpu(force=True)"
        )
        raise GpuPresentError(msg)

    with contextlib.ExitStack() as undo:
        for owner, name, value in (*cpu_device.replacements(), *cpu_collectives.replacements()):
            undo.enter_context(replaced(owner, name, value))
        undo.enter_context(_device_mode())
        undo.enter_context(replaced(torch.autograd, "_engine_run_backward", _in_mode(torch.autograd)))
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


def _in_mode(autograd: Any) -> Callable[..., Any]:
    """Return what runs the backward pass, with the mode in it, and so in whatever is recomputed there.

    A torch function, as `backward` is one, runs without the mode that it was called under.
    """
    run_backward: Callable[..., Any] = autograd._engine_run_backward  # noqa: SLF001 -- there is no other way in

    def run_backward_in_mode(*args: Any, **kwargs: Any) -> Any:
        with _device_mode():
            return run_backward(*args, **kwargs)

    return run_backward_in_mode


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
            if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                return args[0]
            given = tuple(map(moved, args))
            named = {name: moved(value) for name, value in (kwargs or {}).items()}
            if "pin_memory" in named:
                named["pin_memory"] = False  # pages are pinned for a device
            if func is torch.Tensor.type:
                return _type(func, *given, **named)
            if func is torch.device and cpu in (*given, *named.values()):
                return cpu  # whatever the index was
            return func(*given, **named)

    return CpuForCuda()


def _type(original: Callable[..., Any], tensor: Any, dtype: Any = None, *rest: Any, **more: Any) -> Any:
    """Return the tensor as the type that is asked for, or the name of its type as if it were on the device.

    Megatron's optimizers take parameters and gradients of no other type.
    """
    cpu, cuda = "torch.", "torch.cuda."
    if dtype is not None:
        if isinstance(dtype, str) and dtype.startswith(cuda):
            dtype = cpu + dtype.removeprefix(cuda)
        return original(tensor, dtype, *rest, **more)
    name: str = original(tensor)
    return name if name.startswith(cuda) else cuda + name.removeprefix(cpu)
