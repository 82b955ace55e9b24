"""Tokens of each micro-batch before and after, the budget as a line: an SVG for light and for dark pages."""

from __future__ import annotations

from benches import _partition
from benches._partition import BUDGET
from overlay.patches.verl.strict_token_budget import figures

SAMPLES, SCALE = 256, 8.0
#: Of the whole, of one panel's points, and where the first panel's points begin, in pixels.
WIDTH, HEIGHT = 760, 280
INNER_WIDTH, INNER_HEIGHT = 310, 190
LEFT, TOP, STEP = 60, 55, 375
#: Tokens at the bottom and at the top of a panel, and between two labels.
LEAST, MOST, TICK = 12000, 19000, 1000

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.small { font-size: 11px; fill: #57606a; }
.axis { stroke: #8c959f; fill: none; }
.budget { stroke: #24292f; stroke-dasharray: 5 3; }
.held { fill: #0969da; }
.over { fill: #cf222e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #9198a1; }
  .budget { stroke: #e6edf3; }
  .held { fill: #58a6ff; }
  .over { fill: #ff7b72; }
}
"""


def divided() -> dict[str, list[int]]:
    """Return the tokens of each micro-batch before and after, by name, for the seed of the benchmark."""
    drawn = _partition.lengths(SAMPLES, SCALE)
    return dict(zip(("verl 0.8.0", "with overlay"), figures.divided(drawn, BUDGET), strict=True))


def draw() -> str:
    """Return the picture for the seed of the benchmark."""
    body = [panel(name, tokens, place) for place, (name, tokens) in enumerate(divided().items())]
    title = f"Tokens of each micro-batch: {SAMPLES} samples, budget {BUDGET:,} tokens"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<text x="{LEFT}" y="20">{title}</text>',
            *body,
            "</svg>\n",
        ]
    )


def panel(name: str, tokens: list[int], place: int) -> str:
    """Return one panel: a point for each micro-batch, the fullest first."""
    left, right, bottom = LEFT + place * STEP, LEFT + place * STEP + INNER_WIDTH, TOP + INNER_HEIGHT
    over = sum(count > BUDGET for count in tokens)
    heading = f"{name}: {len(tokens)} micro-batches, {over} over budget"
    lines = [
        f'<text class="small" x="{left}" y="{TOP - 12}">{heading}</text>',
        f'<path class="axis" d="M{left} {TOP}V{bottom}H{right}"/>',
        f'<path class="budget" d="M{left} {height(BUDGET)}H{right}"/>',
        f'<text class="small" text-anchor="end" x="{right}" y="{height(BUDGET) - 5}">budget</text>',
        f'<text class="small" x="{left}" y="{bottom + 20}">micro-batches, fullest first</text>',
    ]
    if place == 0:
        lines += [
            f'<text class="small" text-anchor="end" x="{left - 6}" y="{height(tick) + 4}">{tick:,}</text>'
            for tick in range(LEAST, MOST + 1, TICK)
        ]
    for rank, count in enumerate(tokens):
        x = left + 6 + rank * (INNER_WIDTH - 12) / max(len(tokens) - 1, 1)
        kind = "over" if count > BUDGET else "held"
        lines.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{height(count)}" r="2.5"/>')
    return "\n".join(lines)


def height(tokens: int) -> float:
    """Return where a number of tokens stands, never below the panel."""
    share = max(tokens - LEAST, 0) / (MOST - LEAST)
    return round(TOP + INNER_HEIGHT * (1 - share), 1)
