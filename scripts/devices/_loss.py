"""Memory, time and error of the loss, beside what a user would pick instead.

Memory is the peak beyond the logits in N, the size of the logits. Time on a GPU is told in parts of the floor
too: one read of the logits forward, one read and one write backward, as fast as it copies them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from devices import _loss_rivals

from overlay.compat.live_bytes import LiveBytes

#: T and V on a GPU: V as of Qwen and of DeepSeek, whole and as slices of tensor parallel ranks.
SIZES = [
    (tokens, vocabulary // ranks)
    for vocabulary in (152_064, 129_280)
    for ranks in (1, 2, 8)
    for tokens in (8_192, 32_768)
]
SMALL = [(33, 517)]
#: Rows of which the error is looked at, in float64: half of them the first, and half the last, which of the
#: largest sizes lie beyond what 32 bits can count.
LOOKED_AT = 64


def rows(device: str, seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield size, implementation and what was found, one after the other."""
    for tokens, vocabulary in SIZES if device == "cuda" else SMALL:
        size = f"T {tokens:,}, V {vocabulary:,}"
        made = torch.Generator(device).manual_seed(seed)
        leaf = torch.empty(tokens, vocabulary, device=device)
        leaf.normal_(0, 3, generator=made)
        # As slime has them: bfloat16 of a model, in float32.
        leaf = leaf.bfloat16().float().requires_grad_()
        targets = torch.randint(vocabulary, (tokens,), generator=made, device=device)
        floor = 1.5 * copying(leaf.detach())
        for name, function in _loss_rivals.functions(device).items():
            if isinstance(function, str):
                yield size, name, function
                continue
            try:
                yield size, name, measured(function, leaf, targets, floor)
            except Exception as error:  # noqa: BLE001 -- of somebody else's kernel, or for lack of memory
                yield size, name, f"{type(error).__name__}: {str(error).partition(chr(10))[0][:60]}"
            leaf.grad = None
            if device == "cuda":
                torch.cuda.empty_cache()


def measured(function: Any, leaf: Any, targets: Any, floor: float) -> str:
    """Return peak, times and error of one function."""
    forward, backward = [], []
    for _ in range(4 if leaf.is_cuda else 2):
        logits = [leaf.clone()]
        start = clock(leaf)
        found = function(logits.pop(), targets)
        forward.append(clock(leaf) - start)
        start = clock(leaf)
        (gradient,) = torch.autograd.grad(found.sum(), leaf)
        backward.append(clock(leaf) - start)
        error = wrong(leaf, targets, found, gradient)
        del found, gradient
    # The first turn compiles, for which some need memory too.
    turns = range(2 if leaf.is_cuda else 1)
    least = [min(peak(function, leaf, targets, graded=graded) for _ in turns) for graded in (True, False)]
    peaks = [most / (leaf.numel() * 4) for most in least]
    best = min(forward[1:]), min(backward[1:])
    times = f"{1e3 * best[0]:8.2f} ms {1e3 * best[1]:8.2f} ms"
    if leaf.is_cuda:
        times += f" {sum(best) / floor:6.2f} x the floor"
    return f"peak {peaks[0]:5.2f} N, {peaks[1]:5.2f} without gradient; {times}; error {error:.1e}"


def peak(function: Any, leaf: Any, targets: Any, *, graded: bool) -> int:
    """Return the most bytes that are there beyond the logits."""
    logits = [leaf.clone() if graded else leaf.detach().clone()]
    # Not on a GPU: under a mode nothing is compiled, and its allocator knows without one.
    live = None if leaf.is_cuda else LiveBytes(leaf, logits[0])
    before = 0
    if leaf.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with live or contextlib.nullcontext(), torch.set_grad_enabled(graded):
        found = function(logits.pop(), targets)
        if graded:
            torch.autograd.grad(found.sum(), leaf)
    if live is not None:
        return int(live.peak)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def wrong(leaf: Any, targets: Any, found: Any, gradient: Any) -> float:
    """Return the larger error, of values and of gradients, of the first and the last rows.

    Each is in parts of the norm of what is right.
    """
    exact = ends(leaf.detach()).double().requires_grad_()
    wanted = _loss_rivals.plain(exact, ends(targets))
    (slope,) = torch.autograd.grad(wanted.sum(), exact)
    pairs = ((ends(found), wanted), (ends(gradient), slope))
    return max(float((a.detach().double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs)


def ends(values: Any) -> Any:
    """Return the first and the last rows, each once."""
    half = LOOKED_AT // 2
    return values if len(values) <= LOOKED_AT else torch.cat([values[:half], values[-half:]])


def copying(values: Any) -> float:
    """Return the seconds in which this device copies values: one read and one write."""
    there, times = torch.empty_like(values), []
    for _ in range(4):
        start = clock(values)
        there.copy_(values)
        times.append(clock(values) - start)
    return min(times)


def clock(values: Any) -> float:
    """Return the time, after all that was asked of the values' device is done."""
    if values.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
