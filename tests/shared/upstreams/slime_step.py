"""Starts the cases of `slime_step_cases` on an image of slime's, and says of each what it came to."""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_step_cases import CASES, Case

from overlay.compat.ranks.warm import Program
from sources import slime_images

#: Relative, of advantages and gradients: ten times what float32 leaves here.
TOLERANCE = 1e-5
#: Seconds for a start of the cases, and for each case besides.
START, EACH = 120.0, 60.0
#: Of a case that ended with what slime's step has to find.
RIGHT = "right"

_PROGRAM = Path(__file__).with_name("slime_step_main.py")


@dataclass
class Row:
    """What a case came to in one mode."""

    case: Case
    verdict: str
    #: Micro-batches of more than one sample that exceed the budget, of how many, and the worst, in budgets.
    over: tuple[int, int, float] | None = None
    #: The largest relative errors over the ranks.
    advantages: float | None = None
    gradient: float | None = None
    #: The largest difference of a published weight from the actor's.
    published: float | None = None
    #: The most that was held at once, in the logits of a rank's largest micro-batch.
    peak: float | None = None
    #: By rank that reads its own, the lengths of the samples of each micro-batch.
    micro_batches: list[list[list[int]]] = field(default_factory=list)
    seconds: float = 0.0
    #: The known defects that the first rank said affect this job.
    met: list[str] = field(default_factory=list)


def run(
    release: str,
    image: Path,
    mode: str,
    cases: Sequence[Case],
    seed: int,
    say: Callable[[str], object] = lambda _: None,
    stop: threading.Event | None = None,
) -> dict[str, Row]:
    """Run cases, and return a row for each, by its name.

    Ranks are forked from one process, or from one for each selection of patches.

    Args:
        release: Of slime, for its scripts.
        image: The folder of slime and its Megatron.
        mode: "plain" or "overlay".
        cases: Which, and in which order.
        seed: Of weights and samples.
        say: Told of each case that has ended.
        stop: Set to give up.

    Raises:
        RuntimeError: A process ended before all its cases had, or was given up. With what it said.

    """
    rows: dict[str, Row] = {}
    for patches in dict.fromkeys(case.select if mode == "overlay" else "" for case in cases):
        part = [case for case in cases if not patches or case.select == patches]
        rows |= _run(release, image, patches, part, seed, say, stop)
    return {case.name: rows[case.name] for case in cases}


def _run(
    release: str,
    image: Path,
    patches: str,
    cases: Sequence[Case],
    seed: int,
    say: Callable[[str], object],
    stop: threading.Event | None,
) -> dict[str, Row]:
    """Run cases with some patches, or with none, on ranks that are forked from one process."""
    limit = START + sum(EACH + case.timeout for case in cases)
    rows: dict[str, Row] = {}
    by_name = {case.name: case for case in cases}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [str(_PROGRAM), patches, str(folder), str(seed), *by_name]
        path = [str(image), *map(str, _PROGRAM.parents[:2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ours = [name for name in os.environ if name.startswith("OVERLAY")]
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        environment |= {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        for script in {case.script for case in cases} - {""}:
            (folder / script).write_bytes(slime_images.script(release, script))
        with (folder / "log.txt").open("wb") as log:
            process = Program(command, environment, log, log)
            try:
                deadline = time.monotonic() + limit
                while len(rows) < len(cases) and time.monotonic() < deadline:
                    ended = process.has_ended(0.1)
                    for case, found, seconds in _lines(folder / "rows.jsonl")[len(rows) :]:
                        rows[case] = judged(by_name[case], found)
                        rows[case].seconds = seconds
                        rows[case].met = found[0].get("met", [])
                        say(f"{case}: {rows[case].verdict}")
                    if (ended and len(rows) < len(cases)) or (stop is not None and stop.is_set()):
                        break
            finally:
                process.end()
        if len(rows) < len(cases):
            said = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")[-4000:]
            missing = next(case.name for case in cases if case.name not in rows)
            msg = f"{missing!r} has not come to an end, at most {limit:g} s after the start:\n{said}"
            raise RuntimeError(msg)
    return rows


def _lines(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def judged(case: Case, found: list[dict[str, Any]]) -> Row:
    """Return the row of a case by what its ranks found."""
    ended = how_it_ended(case, found)
    if ended:
        return Row(case, ended)
    if case.publishes:
        row = Row(case, RIGHT, published=_worst(found, "published"))
        if row.published != 0:  # weights are copied, and not computed
            row.verdict = "wrong"
        if row.published != 0 and case.script:
            each = list(zip(*(rank["rollouts"] for rank in found), strict=True))
            row.verdict += f": {sum(any(rollout) for rollout in each)} of {len(each)} rollouts"
        return row
    read = [rank["micro_batches"] for rank in found if rank["micro_batches"] is not None]
    row = Row(case, RIGHT, micro_batches=read)
    if case.memory is not None:
        row.peak = max(rank["peak"] / logits(case, rank["micro_batches"]) for rank in found)
        if not row.peak <= case.memory:
            row.verdict = f"needs {row.peak:.1f} logits"
        return row
    budget = found[0]["budget"]
    parts = [part for rank in read for part in rank]
    over = [sum(part) / budget for part in parts if len(part) > 1 and sum(part) > budget]
    row.over = len(over), len(parts), max(over, default=0.0)
    row.advantages = _worst(found, "advantages")
    row.gradient = _worst(found, "gradient")
    # A comparison with NaN is false: only what is known to be within the tolerance is right.
    exact = row.advantages < TOLERANCE and row.gradient < TOLERANCE
    words = ["over budget"] * bool(over) + ["wrong"] * (not exact)
    if sorted(length for part in parts for length in part) != sorted(total for total, _ in case.lengths):
        words.append("not each sample once")
    row.verdict = ", ".join(words) or RIGHT
    return row


def how_it_ended(case: Case, found: list[dict[str, Any]]) -> str:
    """Return what went wrong on a rank, empty if all ranks came back with what they found."""
    raised = sorted((rank["at"], rank["raised"]) for rank in found if "raised" in rank)
    # What the other ranks say is that one is gone, so the first to raise is the one to listen to.
    first = raised[0][1] if raised else ""
    if "Timed out" in first or (not raised and any("waiting" in rank for rank in found)):
        return f"hangs (given up after {case.timeout:g} s)"
    if "nan" in first.lower().split():
        return "NaN, at which Megatron stops"
    return f"crashes: {first}" if first else ""


def logits(case: Case, micro_batches: list[list[int]]) -> int:
    """Return the bytes of the logits of a rank's largest micro-batch, in float32 and as slime pads it."""
    tokens = max(sum(part) for part in micro_batches)
    return 4 * case.sizes.vocabulary * 4 * math.ceil(tokens / 4)


def _worst(found: list[dict[str, Any]], what: str) -> float:
    errors = [math.nan if rank[what] is None else float(rank[what]) for rank in found]
    return max(errors, key=lambda error: (math.isnan(error), error))


def cases_of(release: str) -> list[Case]:
    """Return the cases that are run on a release."""
    return [case for case in CASES if release in case.alone]


def unlike_claimed(release: str, plain: dict[str, Row], overlay: dict[str, Row]) -> list[str]:
    """Return a sentence for each case that does not come to what is claimed of it."""
    said = []
    for name, row in plain.items():
        claimed = row.case.alone[release]
        if not row.verdict.startswith(claimed):
            said.append(f"{release} alone, {name}: {row.verdict}, and not {' or '.join(claimed)}")
        ours = overlay[name]
        if ours.verdict != RIGHT:
            said.append(f"{release} with overlay, {name}: {ours.verdict}")
        elif row.verdict == RIGHT and ours.micro_batches != row.micro_batches:
            said.append(f"{release} with overlay, {name}: other micro-batches, where slime's are right")
    return said
