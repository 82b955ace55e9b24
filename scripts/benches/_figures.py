"""Pictures of the documents: figures as `overlay report` draws them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from overlay.report import charts

STYLE = Path(charts.__file__).with_name("page.css")
#: In place of a hatch of matplotlib's, which has thousands of dots.
DOTS = (
    r'\1 patternUnits="userSpaceOnUse" width="6" height="6"><rect width="6" height="6" fill="var(--idle)"/>'
    r'<circle cx="3" cy="3" r="1" fill="var(--muted)"/></pattern>'
)


def draw(figure: dict[str, Any], path: Path) -> None:
    """Write a figure as a report draws it on a desktop: one SVG, for light and for dark pages."""
    import matplotlib as mpl

    # The same names in each run, so that the file changes with the figure alone.
    with mpl.rc_context({"svg.hashsalt": figure["title"]}):
        wide, end, _ = charts.chart(figure).svg.partition("</svg>")
    wide = re.sub(r'(<pattern id="[^"]+").*?</pattern>', DOTS, wide, flags=re.DOTALL)
    colours, _, _ = STYLE.read_text(encoding="utf-8").partition("\n* {")
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head, title, body = wide.replace("<svg", f"<svg {spaces}", 1).partition("<title")
    path.write_text(f"{head}<style>{colours}</style>{title}{body}{end}\n", encoding="utf-8")
