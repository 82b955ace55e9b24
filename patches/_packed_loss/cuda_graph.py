"""What a CUDA graph can hold: numbers that are made on the device, and nothing that the host looks at."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    #: A run of rows: first, and one past the last.
    Span = tuple[int, int]


def capturing(device: Any) -> bool:
    """Return whether a CUDA graph is captured on the current stream of a device.

    While it is, a copy between host and device, or a look at a number of the device, is an error of CUDA's.
    """
    import torch

    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def numbers(spans: Iterable[Span], device: Any) -> Any:
    """Return the whole numbers [R] that are in runs, one run after the other, on a device."""
    import torch

    # On the host, whatever the default device is: a launch for each of many runs takes longer than the copy.
    made_on = device if capturing(torch.device(device)) else "cpu"
    runs = [torch.arange(start, stop, device=made_on) for start, stop in [(0, 0), *spans]]
    return torch.cat(runs).to(device)
