"""What a CUDA graph can hold: numbers made on the device, which the host does not look at."""

from collections.abc import Iterable
from typing import Any

#: A run of rows: first, and one past the last.
Span = tuple[int, int]


def capturing(device: Any) -> bool:
    """Return whether a CUDA graph is captured on a device's current stream, so that CUDA refuses any sync."""
    import torch

    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def numbers(spans: Iterable[Span], device: Any) -> Any:
    """Return the integers of runs, one run after the other, as int64 [R] on a device."""
    import torch

    # On the host, whatever the default device is: many launches take longer than one copy.
    made_on = device if capturing(torch.device(device)) else "cpu"
    runs = [torch.arange(start, stop, device=made_on) for start, stop in [(0, 0), *spans]]
    return torch.cat(runs).to(device)
