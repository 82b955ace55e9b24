"""What a long command is at: a bar where stderr is a terminal, and plain lines where it is none."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sized
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.progress import Progress

T = TypeVar("T")
#: The display that is there now: what is worked on inside an item gets a bar in the same one.
_shown: list[Progress] = []


def tracked(
    items: Iterable[T],
    name: Callable[[T], str] = str,
    *,
    total: int | None = None,
    lines: bool = True,
) -> Iterator[T]:
    """Yield items, and say on stderr which one is being worked on. Nothing is added to stdout.

    Args:
        items: What is worked on.
        name: Says what an item is called.
        total: How many there are, of what has no length.
        lines: Whether each is named in a line of its own where stderr is no terminal.

    """
    if not sys.stderr.isatty():
        for item in items:
            if lines:
                print(f"{name(item)} ...", file=sys.stderr, flush=True)
            yield item
        return
    with contextlib.ExitStack() as stack:
        if not _shown:
            _shown.append(stack.enter_context(_display()))
            stack.callback(_shown.clear)
        (display,) = _shown
        task = display.add_task("", total=len(items) if isinstance(items, Sized) else total)
        stack.callback(display.remove_task, task)
        for item in items:
            display.update(task, description=name(item), refresh=True)
            yield item
            display.advance(task)


def _display() -> Progress:
    """Return what shows bars, one below the other, until it is left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    # What goes to the same terminal has to be written above the bars; what goes elsewhere is left alone.
    shared = sys.stdout.isatty()
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=shared)
