"""What overlay adds to the import of a trainer: verl's Megatron engine and slime's actor, in turn with plain.

Each import is a process of its own, as a rank is. It may also write the line on the configuration, as rank 0
does, or parse all sources, as where somebody has edited each file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benches._timing import Row, clean_environment, interpreter, summary, take_turns
from sources import slime_images
from sources.git_sources import UPSTREAMS, FetchError

PROGRAM = Path(__file__).with_name("_importing.py")
#: What the issue of this project allows: of a rank, and of the import.
MOST_MS, MOST_SHARE = 300.0, 0.05
#: The release of slime, with the Megatron of its image.
RELEASE = "v0.3.1"
#: Parts of the last measurement, by what was imported and how: medians in ms.
_parts: dict[str, dict[str, float]] = {}


def trainers() -> dict[str, list[str]]:
    """Return what can be imported here, with the arguments of the program."""
    found = {"verl's Megatron engine": ["verl"]}
    missing = [name for name in ("slime", "megatron") if not os.environ.get(UPSTREAMS[name].variable)]
    if missing:
        names = " and ".join(UPSTREAMS[name].variable for name in missing)
        print(f"start: slime's actor is left out: {names} not set", file=sys.stderr)
        return found
    try:
        return {**found, f"slime's actor ({RELEASE})": ["slime", str(slime_images.fetch(RELEASE))]}
    except FetchError as error:
        print(f"start: slime's actor is left out: {error}", file=sys.stderr)
        return found


def measure(turns: int) -> list[Row]:
    """Compare the imports with overlay with those without."""
    rows = []
    for name, arguments in trainers().items():
        for label, how, environ in (
            ("a rank", "armed", {}),
            ("rank 0, with log line", "armed", {"RANK": "0", "OVERLAY_LOG": "info"}),
            ("a rank, all files edited", "edited", {}),
        ):
            title = f"{name}, {label}"
            pairs, parts = _compared(arguments, how, environ, turns)
            rows.append(_row(f"{title} / plain", pairs, [sum(one.values()) for one in parts]))
            _parts[title] = {part: median(one.get(part, 0.0) for one in parts) * 1e3 for part in parts[0]}
    return rows


def _row(name: str, pairs: list[tuple[float, float]], own: list[float]) -> Row:
    """Return a row, of which what overlay takes is the sum of its parts.

    The difference of two imports of some seconds each is mostly noise.
    """
    row = summary(name, "ms", pairs, scale=1e3, target=0.0, held="more")
    allowed = min(MOST_MS, MOST_SHARE * row.baseline)
    return row._replace(more=median(own) * 1e3, more_min=min(own) * 1e3, target=allowed)


def _compared(
    arguments: list[str], how: str, environ: dict[str, str], turns: int
) -> tuple[list[tuple[float, float]], list[dict[str, float]]]:
    """Return what an import takes without overlay and with it, in seconds, and the parts of the latter."""
    what, *folders = arguments
    parts: list[dict[str, float]] = []

    def plain() -> float:
        return float(_import(what, "plain", *folders)["total"])

    def armed() -> float:
        done = _import(what, how, *folders, environ=environ)
        parts.append(done["parts"])
        return float(done["total"])

    armed()  # warms the disk cache
    parts.clear()
    return take_turns(plain, armed, turns), parts


def report() -> str:
    """Return the parts as text in columns."""
    names = list(dict.fromkeys(name for parts in _parts.values() for name in parts))
    lines = [f"{'processor time in ms, medians':52}" + "".join(f"{name:>12}" for name in names)]
    for title, parts in _parts.items():
        lines.append(f"{title:52}" + "".join(f"{parts.get(name, 0.0):12.1f}" for name in names))
    return "\n".join(lines)


def _import(*arguments: str, environ: dict[str, str] | None = None) -> dict[str, Any]:
    environ = {**clean_environment(), "OVERLAY_LOG": "off", "RANK": "1", **(environ or {})}
    done = subprocess.run(
        interpreter(str(PROGRAM), *arguments), env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} cannot be imported:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if arguments[1] != "plain" and not found["applied"]:
        raise RuntimeError(f"{arguments[0]}: no patch was applied")
    return found
