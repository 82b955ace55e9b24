"""Draws the charts of a report from the figures of benchmarks, each with its numbers as a table.

A figure is what a benchmark writes below "figures": a `kind`, a `title`, and what that kind asks for.
"""

from __future__ import annotations

import math

from overlay.base.record import TYPE_CHECKING, Record
from overlay.errors import ReportError
from overlay.report import drawing
from overlay.report.drawing import AFTER, BAD, BEFORE, IDLE, INK, LINES, MARKERS, ON_SHARES, SHARES, short

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any


class Chart(Record):
    """One picture, with a caption and the same numbers as a table."""

    title: str
    #: One sentence on what to see.
    caption: str
    #: Two drawings, for much and for little room.
    svg: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def chart(figure: Any) -> Chart:
    """Return the chart of one figure. Raises `ReportError` if it cannot be drawn."""
    try:
        draw = KINDS[figure["kind"]]
        return draw(str(figure["title"]), figure)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ReportError(f"a figure cannot be drawn: {type(error).__name__}: {error}") from error


def micro_batches(title: str, figure: dict[str, Any]) -> Chart:
    """Draw `series`, a list of tokens for each name, against the `budget`."""
    budget, series = int(figure["budget"]), _series(figure["series"])
    over = {name: sum(count > budget for count in tokens) for name, tokens in series.items()}

    def draw(axes: Any, narrow: bool) -> None:
        what = "over" if narrow else "over the budget"
        for (name, tokens), look in zip(series.items(), _looks(), strict=False):
            axes.plot(
                range(1, len(tokens) + 1),
                sorted(tokens, reverse=True),
                label=f"{short(name, _room(narrow))}: {over[name]} of {len(tokens)} {what}",
                markersize=2.5 if narrow else 4,
                linewidth=0.8,
                **look,
            )
        axes.axhline(budget, color=INK, linewidth=1.2)
        axes.annotate(
            f"budget {budget:,}", (1, budget), (0, 4), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right",
        )  # fmt: skip
        axes.set_xlabel("micro-batches, fullest first")
        axes.set_ylabel("tokens")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        _legend(axes, series, narrow)

    rows = [
        (name, str(len(tokens)), str(over[name]), f"{max(tokens):,.0f}", f"{min(tokens):,.0f}")
        for name, tokens in series.items()
    ]
    head = ("", "micro-batches", "over the budget", "most tokens", "fewest tokens")
    caption = f"Tokens of each micro-batch, the fullest first; the line is the budget of {budget:,}."
    return _chart(title, caption, draw, head, rows)


def memory(title: str, figure: dict[str, Any]) -> Chart:
    """Draw `cases`, a value in `unit` for each name, as bars."""
    cases = {
        str(case): {str(name): float(value) for name, value in values.items()}
        for case, values in figure["cases"].items()
    }
    unit, names = str(figure["unit"]), list(dict.fromkeys(name for row in cases.values() for name in row))

    def draw(axes: Any, narrow: bool) -> None:
        thick = (0.58 if narrow else 0.8) / len(names)
        for place, name in enumerate(names):
            values = [row.get(name, math.nan) for row in cases.values()]
            axes.barh(
                [index + place * thick for index in range(len(cases))],
                values,
                thick,
                label=short(name, _room(narrow)),
                color=AFTER if place == len(names) - 1 else BEFORE,
                alpha=1 if place in (0, len(names) - 1) else 0.55,
                hatch=None if place == len(names) - 1 else "////",
                edgecolor=INK,
                linewidth=0.4,
            )
        middle = (len(names) - 1) * thick / 2
        _name_rows(axes, cases, middle, narrow, above=middle + thick / 2 + 0.2)
        axes.set_ylim(len(cases) - 0.4, -0.75 if narrow else -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(short(unit, _room(narrow)))
        _legend(axes, names, narrow)

    rows = [(case, *(_short(row.get(name)) for name in names)) for case, row in cases.items()]
    caption = f"In {unit}, by case: shorter is better."
    head, bars = ("case", *names), 0.28 * len(cases) * len(names)
    heights = 1.2 + bars, 1.3 + bars + 0.2 * len(cases) + 0.18 * len(names)
    return _chart(title, caption, draw, head, rows, heights)


def memory_over_time(title: str, figure: dict[str, Any]) -> Chart:
    """Draw `series`, a list of values in `unit` for each name, over the operations of a step."""
    series, unit = _series(figure["series"]), str(figure["unit"])

    def draw(axes: Any, narrow: bool) -> None:
        for (name, values), look in zip(series.items(), _looks(), strict=False):
            label = f"{short(name, _room(narrow))}: peak {max(values):.3g}"
            axes.step(range(len(values)), values, where="post", label=label, **{**look, "marker": "none"})
        axes.set_xlabel("operations, in order" if narrow else "operations of forward and backward, in order")
        axes.set_ylabel(short(unit, _room(narrow)))
        axes.set_ylim(bottom=0)
        _legend(axes, series, narrow)

    rows = [
        (name, str(len(values)), _short(max(values)), _short(values[-1])) for name, values in series.items()
    ]
    caption = f"What is alive beyond the input, in {unit}, after each operation."
    return _chart(title, caption, draw, ("", "operations", "peak", "at the end"), rows)


def gradient_error(title: str, figure: dict[str, Any]) -> Chart:
    """Draw `cases`, a relative error for each name, or `null` for what did not come to an end."""
    cases, tolerance = figure["cases"], float(figure["tolerance"])
    names = list(dict.fromkeys(str(name) for row in cases.values() for name in row))

    def value(row: dict[str, Any], name: str) -> float | None:
        found = row.get(name)
        return None if found is None or not math.isfinite(found) else max(float(found), 1e-10)

    def draw(axes: Any, narrow: bool) -> None:
        axes.set_xscale("log")
        for name, look in zip(names, _looks(), strict=False):
            errors = [value(row, name) for row in cases.values()]
            there = [index for index, error in enumerate(errors) if error is not None]
            style = {**look, "linestyle": "none", "markersize": 8}
            axes.plot([errors[index] for index in there], there, label=short(name, _room(narrow)), **style)
        axes.axvline(tolerance, color=INK, linewidth=1)
        axes.annotate(
            f"right is below {tolerance:g}", (tolerance, 0), (4, 3), xycoords=("data", "axes fraction"),
            textcoords="offset points",
        )  # fmt: skip
        for index, row in enumerate(cases.values()):
            lost = [name for name in names if value(row, name) is None]
            if lost:
                text = f"{', '.join(short(name, _room(narrow)) for name in lost)}: no result"
                axes.annotate(
                    text, (1, index), xycoords=("axes fraction", "data"),
                    ha="right", va="center", color=BAD,
                )  # fmt: skip
        _name_rows(axes, cases, 0, narrow, above=0.3)
        axes.set_ylim(len(cases) - 0.3, -0.7)
        axes.set_xlim(1e-10, 10)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("relative error of the gradient")
        _legend(axes, names, narrow)

    rows = []
    for case, row in cases.items():
        errors = (value(row, name) for name in names)
        rows.append((str(case), *("no result" if error is None else f"{error:.1e}" for error in errors)))
    caption = f"Relative error of the gradient against one process in float64; right is below {tolerance:g}."
    heights = 1.4 + 0.4 * len(cases), 1.4 + 0.55 * len(cases) + 0.18 * len(names)
    return _chart(title, caption, draw, ("case", *names), rows, heights)


def timelines(title: str, figure: dict[str, Any]) -> Chart:
    """Draw `steps`: for each name spans of rank, size (0 where it waits), begin and end, in seconds."""
    steps = {
        str(name): [(int(r), int(c), float(b), float(e)) for r, c, b, e in spans]
        for name, spans in figure["steps"].items()
    }
    sizes = sorted({size for spans in steps.values() for _, size, _, _ in spans if size})
    colours = dict(
        zip(sizes, SHARES[-len(sizes) :] if len(sizes) <= len(SHARES) else SHARES * 9, strict=False)
    )
    ranks = {name: 1 + max(rank for rank, *_ in spans) for name, spans in steps.items()}

    def draw(axes: Any, narrow: bool) -> None:
        ticks, labels, top = [], [], 0.0
        for name, spans in steps.items():
            axes.text(0, top + 0.1, short(name), va="center")
            for size in [0, *sizes]:
                chosen = [span for span in spans if span[1] == size]
                axes.barh(
                    [top + 1 + rank for rank, *_ in chosen],
                    [end - begin for *_, begin, end in chosen],
                    0.86,
                    [begin for _, _, begin, _ in chosen],
                    color=colours.get(size, IDLE),
                    edgecolor=INK,
                    linewidth=0.3,
                    hatch=None if size else "....",
                )
            ticks += [top + 1 + rank for rank in range(ranks[name])]
            labels += [str(rank) for rank in range(ranks[name])]
            longest = max(end for *_, end in spans)
            for rank, size, begin, end in spans:
                if size and end - begin > (0.08 if narrow else 0.04) * longest:
                    middle = (begin + end) / 2
                    axes.text(
                        middle, top + 1 + rank, str(size), ha="center", va="center", fontsize=6.5,
                        color=ON_SHARES[SHARES.index(colours[size])],
                    )  # fmt: skip
            top += ranks[name] + 1.6
        for size in [0, *sizes]:
            text = f"{size} share a sequence" if size else "waits"
            axes.barh([0], [0], color=colours.get(size, IDLE), hatch=None if size else "....", label=text)
        axes.set_yticks(ticks, labels, fontsize=7)
        axes.set_ylim(top - 0.5, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_ylabel("rank")
        axes.set_xlabel("seconds")
        axes.figure.legend(loc="outside lower center", ncols=2 if narrow else len(sizes) + 1, fontsize=8.5)

    rows = []
    for name, spans in steps.items():
        end = max(end for *_, end in spans)
        busy = sum(end - begin for _, size, begin, end in spans if size)
        rows.append((name, f"{end:.3g} s", f"{1 - busy / (ranks[name] * end):.0%}"))
    caption = "What each rank does in a step, from left to right; the dots are where it waits for others."
    head = ("", "the step takes", "ranks idle")
    total = sum(ranks.values()) + 2 * len(steps)
    return _chart(title, caption, draw, head, rows, (1.1 + 0.19 * total, 1.3 + 0.19 * total))


KINDS: dict[str, Callable[[str, dict[str, Any]], Chart]] = {
    "micro-batches": micro_batches,
    "memory": memory,
    "memory-over-time": memory_over_time,
    "gradient-error": gradient_error,
    "timelines": timelines,
}


def _chart(  # noqa: PLR0913, PLR0917 -- all that there is to one
    title: str,
    caption: str,
    draw: Callable[..., None],
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    heights: tuple[float, float] = (3.2, 3.2),
) -> Chart:
    pictures = drawing.svgs(draw, title=f"{title}. {caption}", heights=heights)
    cells = tuple(tuple(row) for row in rows)
    return Chart(title=title, caption=caption, svg=pictures, head=tuple(head), rows=cells)


def _room(narrow: bool) -> int:
    """Return how many characters a name may have."""
    return 22 if narrow else 40


def _legend(axes: Any, names: Collection[str], narrow: bool) -> None:
    """Put the names of the series above the axes, where they hide nothing: one below the other on a phone."""
    axes.figure.legend(loc="outside upper left", ncols=1 if narrow else min(len(names), 3))


def _name_rows(axes: Any, names: Iterable[str], at: float, narrow: bool, above: float) -> None:
    """Name the rows of a chart: before them, or on a phone above each, inside the axes."""
    named = list(enumerate(names))
    axes.set_yticks([place + at for place, _ in named], ["" if narrow else short(name) for _, name in named])
    for place, name in named if narrow else ():
        axes.annotate(
            short(name), (0, place + at - above), (3, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="center", fontsize=8.5,
        )  # fmt: skip


def _looks() -> list[dict[str, Any]]:
    """Return styles for series, none of which differ by colour alone; the second is for overlay."""
    colours = (BEFORE, AFTER, *SHARES)
    return [
        {"color": colour, "marker": marker, "linestyle": LINES[place % len(LINES)]}
        for place, (colour, marker) in enumerate(zip(colours, MARKERS, strict=True))
    ]


def _series(given: Any) -> dict[str, list[float]]:
    return {str(name): [float(value) for value in values] for name, values in given.items()}


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
