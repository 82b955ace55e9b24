"""What a long command is at: a bar where stderr is a terminal, and plain lines where it is none."""

from __future__ import annotations

import sys
from collections.abc import Sized
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")


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
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    # What goes to the same terminal has to be written above the bar; what goes elsewhere is left alone.
    shared = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=shared) as bar:
        task = bar.add_task("", total=len(items) if isinstance(items, Sized) else total)
        for item in items:
            bar.update(task, description=name(item))
            yield item
            bar.advance(task)
