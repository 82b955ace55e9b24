"""Charts as inline SVG whose colours are those of the page, light or dark.

matplotlib draws with stand-in colours, and each is replaced by a variable of the page's style sheet.
"""

from __future__ import annotations

import re
import warnings
from functools import partial
from io import StringIO
from itertools import count

from overlay.base.record import TYPE_CHECKING
from overlay.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Stand-in colours, and the variables of the style sheet that take their place.
INK, MUTED, GRID, BEFORE, AFTER, BAD, IDLE = (f"#01020{number}" for number in range(7))
SHARES = ("#010210", "#010211", "#010212", "#010213")
#: What can be read on each of these, on a light page and on a dark one.
ON_SHARES = ("#0d1117", "#0d1117", "#ffffff", "#ffffff")
_VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    BEFORE: "before",
    AFTER: "after",
    BAD: "bad",
    IDLE: "idle",
    **{colour: f"share-{number}" for number, colour in enumerate(SHARES)},
}
#: Markers and line styles by which series differ, beside their colours.
MARKERS = ("x", "o", "^", "s", "v", "D")
LINES = ("--", "-", ":", "-.")

#: Characters of a name in a picture.
_ROOM = 40
#: Inches of a picture for a desktop or a sheet of paper, and of one for a phone.
WIDE, NARROW = 7.2, 3.7

_numbers = count(1)


def needed() -> None:
    """Raise `ReportError` if what the page is made with is not installed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
    except ImportError as error:
        raise ReportError(
            f"a report needs what the extra report brings: pip install jinja2 matplotlib ({error})"
        ) from error


def svgs(draw: Callable[..., None], *, title: str, heights: tuple[float, float]) -> str:
    """Return a chart as two SVG elements, of which the style sheet shows the one that fits.

    Args:
        draw: Draws on the axes that it is given. `narrow` says whether there is little room.
        title: What a screen reader says first of it.
        heights: Inches of the wide one and of the narrow one; an inch is 72 units of the picture.

    """
    looks = (("wide", WIDE), ("narrow", NARROW))
    return "".join(
        _svg(partial(draw, narrow=look == "narrow"), title=title, height=height, width=width, look=look)
        for (look, width), height in zip(looks, heights, strict=True)
    )


def _svg(draw: Callable[[Any], None], *, title: str, height: float, width: float, look: str) -> str:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Of glyphs that its own font lacks: the page's font is the reader's.
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        out = StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _for_a_page(out.getvalue(), title, look)


#: Of any type: what matplotlib takes as names differs from release to release.
_STYLE: Any = {
    "svg.fonttype": "none",
    # What looks like a formula in a name is none.
    "text.parse_math": False,
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
}


def short(name: object, room: int = _ROOM) -> str:
    """Return a name as it stands in a picture, which has no room for more; the table has all of it."""
    text = " ".join(str(name).split())
    return text if len(text) <= room else f"{text[: room - 1]}\u2026"


def _for_a_page(text: str, title: str, look: str) -> str:
    from markupsafe import escape

    mark = f"chart{next(_numbers)}"
    text = text[text.index("<svg") :]
    # What is meant for a file of its own: a description, and a style for everything.
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{mark}-\1"', text)
    text = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{mark}-", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font: \1px system-ui, sans-serif", text)
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]+"', head)
    opening = f'<svg class="chart {look}" role="img" aria-labelledby="{mark}-title" {box[0] if box else ""}'
    return f'{opening}><title id="{mark}-title">{escape(title)}</title>{body}'
