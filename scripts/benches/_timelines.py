"""What each rank does in a step, from left to right: an SVG for light and for dark pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from overlay.patches._dynamic_cp.plan import Plan

    Load = Callable[[Sequence[int], int, Sequence[int]], int]

#: Of the picture, of a rank's line, and where the lines begin, in pixels.
WIDTH, LINE, LEFT, TOP = 760, 13, 60, 46
#: Between two panels, and the width of the longest.
GAP, INNER = 40, 680

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.small { font-size: 11px; fill: #57606a; }
rect { stroke: #ffffff; stroke-width: 0.5; }
.c1 { fill: #a5d6ff; } .c2 { fill: #54aeff; } .c4 { fill: #0969da; } .c8 { fill: #0a3069; }
.idle { fill: #eaeef2; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #9198a1; }
  rect { stroke: #0d1117; }
  .c1 { fill: #cae8ff; } .c2 { fill: #79c0ff; } .c4 { fill: #1f6feb; } .c8 { fill: #0c2d6b; }
  .idle { fill: #21262d; }
}
"""


def draw(steps: Mapping[str, Sequence[Plan]], lengths: Sequence[int], load: Load) -> str:
    """Return the picture of some steps of the same sequences, one below the other, on one scale.

    Args:
        steps: Plans by name, with places in `lengths`.
        lengths: Tokens of each sequence.
        load: What gives the picoseconds of a subgroup: of lengths, its size, and its sequences.

    """
    by_name = {name: spans(step, lengths, load) for name, step in steps.items()}
    longest = max(end for found in by_name.values() for *_, end in found)
    top, body = TOP, []
    for name, found in by_name.items():
        ranks = 1 + max(rank for rank, *_ in found)
        idle = 1 - sum(end - begin for _, size, begin, end in found if size) / (
            ranks * max(end for *_, end in found)
        )
        took = max(end for *_, end in found) / 1e12
        body.append(
            f'<text class="small" x="{LEFT}" y="{top - 6}">{name}: {took:.2f} s, ranks idle {idle:.0%}</text>'
        )
        for rank, size, begin, end in found:
            kind = f"c{size}" if size else "idle"
            body.append(
                f'<rect class="{kind}" x="{LEFT + INNER * begin / longest:.1f}" y="{top + rank * LINE}" '
                f'width="{INNER * (end - begin) / longest:.1f}" height="{LINE - 1}"/>'
            )
        body += [
            f'<text class="small" text-anchor="end" x="{LEFT - 6}" y="{top + rank * LINE + 10}">{rank}</text>'
            for rank in range(ranks)
        ]
        top += ranks * LINE + GAP
    title = f"Ranks in a step of {len(lengths)} sequences; light to dark: 1, 2, 4, 8 share a sequence"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top - GAP + 12}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<text x="{LEFT}" y="20">{title}</text>',
            *body,
            "</svg>\n",
        ]
    )


def spans(step: Sequence[Plan], lengths: Sequence[int], load: Load) -> list[tuple[int, int, int, int]]:
    """Return rank, size (0 where it waits), begin and end, with all ranks waiting after each micro-batch."""
    begin, found = 0, []
    for plan in step:
        ends = {entry: begin + load(lengths, entry[1], entry[2]) for entry in plan}
        end = max(ends.values())
        for entry in plan:
            start, size, _ = entry
            for rank in range(start, start + size):
                found.append((rank, size, begin, ends[entry]))
                if ends[entry] < end:
                    found.append((rank, 0, ends[entry], end))
        begin = end
    return found
