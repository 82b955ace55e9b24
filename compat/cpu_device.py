"""What `torch.cuda` says of the device, on a machine that has none (see `cuda_on_cpu`).

The device does everything at once and is the CPU. So streams and events never have to wait, its random
generator is the CPU's, and the bytes that were allocated on it are not known, which reads as 0. It is older
than any GPU, so that nothing takes a path for a newer one, and has more memory than any, so that nothing is
cleared away to make room.
"""

from __future__ import annotations

import contextlib
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from typing_extensions import Self


class _AtOnce:
    """What never has to wait."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        pass

    def synchronize(self, *_other: object, **_named: object) -> None:
        """Return at once."""

    def query(self) -> bool:
        """Return whether all is done."""
        return True


class Stream(_AtOnce):
    """A stream on a device that does everything at once."""

    cuda_stream = 0
    stream_id = 0
    device = torch.device("cpu")
    wait_stream = wait_event = _AtOnce.synchronize

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that has happened."""
        return event if event is not None else Event()


class Event(_AtOnce):
    """An event that has happened."""

    record = wait = _AtOnce.synchronize

    def elapsed_time(self, end_event: object) -> float:
        """Refuse: there is no device whose time this could be."""
        raise NotImplementedError("the CPU stand-in for CUDA cannot tell how long a GPU takes")


#: Bytes of memory, all of them free: a tebibyte. slime clears memory where less than 3 GiB are free.
MEMORY = 2**40


class Properties:
    """What is said of the device. Of its processors and caches there is nothing to say, which is an error."""

    name = "CPU (stand-in for CUDA)"
    #: As `get_device_capability`: the first GPUs had 1.0.
    major = 0
    minor = 0
    total_memory = MEMORY
    #: All ranks of a machine are on the same CPU.
    uuid = "00000000-0000-0000-0000-000000000000"


class _Generators(tuple[torch.Generator, ...]):
    """The random generators of all devices: the CPU's, whichever device is meant."""

    __slots__ = ()

    def __getitem__(self, _index: Any) -> Any:
        return torch.default_generator


def replacements() -> list[tuple[Any, str, object]]:
    """Return what to replace: the owner, the name, and the stand-in."""
    cuda = torch.cuda
    quiet = (
        "synchronize", "set_device", "set_stream", "empty_cache", "ipc_collect", "reset_peak_memory_stats",
    )  # fmt: skip
    unknown = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    types = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
    on_cuda: dict[str, object] = {
        "is_available": _no,
        "is_current_stream_capturing": _no,
        # No number: that of a GPU would be meant.
        "current_device": lambda: torch.device("cpu"),
        "Stream": Stream,
        "Event": Event,
        "current_stream": Stream,
        "default_stream": Stream,
        "default_generators": _Generators((torch.default_generator,)),
        "_lazy_call": _at_once,
        "_lazy_init": _nothing,
        "mem_get_info": lambda _device=None: (MEMORY, MEMORY),
        "get_device_properties": lambda _device=None: Properties(),
        "get_device_capability": lambda _device=None: (Properties.major, Properties.minor),
        "get_device_name": lambda _device=None: Properties.name,
        # The context of a stream or a device: there is one.
        **dict.fromkeys(("stream", "device"), lambda _what=None: contextlib.nullcontext()),
        **dict.fromkeys(quiet, _nothing),
        **dict.fromkeys(unknown, _no_bytes),
        **_random_state(),
        **{f"{kind}Tensor": getattr(torch, f"{kind}Tensor") for kind in types},
    }
    found: list[tuple[Any, str, object]] = [(cuda, name, value) for name, value in on_cuda.items()]
    found += [(cuda.random, name, value) for name, value in _random_state().items()]
    # What slime empties when it frees memory of the host; torch has it where it was built for CUDA.
    found.append((torch._C, "_host_emptyCache", _nothing))  # noqa: SLF001
    # Torch looks at the type of the stream before it asks a mode.
    found.append((torch.Tensor, "record_stream", _nothing))
    found += [(torch.cpu, name, _no_bytes) for name in ("max_memory_allocated", "max_memory_reserved")]
    # Where Megatron has taken these by name before.
    taken = sys.modules.get("megatron.core.tensor_parallel.random")
    if taken is not None:
        found += [(taken, "_lazy_call", _at_once), (taken, "_lazy_init", _nothing)]
    return [(owner, name, _own(value)) for owner, name, value in found]


def _own(value: object) -> object:
    """Return a function as one of its own: torch's compiler refuses to load if one stands under two names."""
    if not isinstance(value, FunctionType):
        return value
    copy = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__)
    copy.__kwdefaults__, copy.__doc__ = value.__kwdefaults__, value.__doc__
    return copy


def _random_state() -> dict[str, object]:
    """Return `torch.cuda`'s functions of random state: the CPU's, which its tensors are drawn from."""

    def set_rng_state_all(new_states: Any) -> None:
        for state in new_states:
            torch.set_rng_state(state)

    def manual_seed(seed: int) -> None:
        torch.default_generator.manual_seed(int(seed))

    return {
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": set_rng_state_all,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "initial_seed": torch.initial_seed,
    }


def _no(*_args: object, **_kwargs: object) -> bool:
    return False


def _no_bytes(*_args: object, **_kwargs: object) -> int:
    """Return 0: the bytes that were allocated on a device that is not there."""
    return 0


def _nothing(*_args: object, **_kwargs: object) -> None:
    """Return at once: work on a CPU tensor is done when the call returns, and nothing is to be set up."""


def _at_once(call: Any, **_kwargs: object) -> None:
    """Call what would wait for the device to be there."""
    call()
