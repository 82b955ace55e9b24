"""What the benchmarks share: taking turns, and a row of the table.

Machines are noisy, so nothing is measured alone: the candidates take turns, and what is reported is the
median of the differences within a turn (what one sees) beside the difference of the minima (what it costs).
The clock is the processor time, user and system, of the process concerned: on an idle machine it agrees with
the clock on the wall, and on a busy one it still means something.

This is what pyperf does not do: it measures one command and then the other, by the clock on the wall. On two
busy cores its difference of two starts came out anywhere from nothing to ten times the true one, where turns
of processor time stayed within a fifth of theirs.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple


class Row(NamedTuple):
    """One measured thing, beside what it is measured against."""

    name: str
    unit: str
    #: Median of the plain thing: the empty interpreter, the plain call.
    baseline: float
    #: Median of the measured thing.
    measured: float
    #: Median over the turns of measured minus baseline.
    more: float
    #: Least measured minus least baseline.
    more_min: float
    #: What the issue of this project allows.
    target: float
    #: Which of the numbers is held against the target: "more", "more_min" or "measured".
    held: str = "more"

    @property
    def ratio(self) -> float:
        """Measured over baseline."""
        return self.measured / self.baseline if self.baseline else math.inf

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return float(getattr(self, self.held)) <= self.target


def take_turns(
    plain: Callable[[], float], other: Callable[[], float], turns: int
) -> list[tuple[float, float]]:
    """Return `turns` pairs of measurements; who goes first changes with each turn."""
    pairs = []
    for turn in range(turns):
        if turn % 2:
            second = other()
            first = plain()
        else:
            first = plain()
            second = other()
        pairs.append((first, second))
    return pairs


def summary(  # noqa: PLR0913 -- the fields of a row
    name: str,
    unit: str,
    pairs: Sequence[tuple[float, float]],
    *,
    scale: float,
    target: float,
    held: str = "more",
) -> Row:
    """Make a row of the pairs (seconds), in units of which `scale` make a second."""
    plain = [first * scale for first, _ in pairs]
    other = [second * scale for _, second in pairs]
    return Row(
        name=name,
        unit=unit,
        baseline=median(plain),
        measured=median(other),
        more=median(second - first for first, second in zip(plain, other, strict=True)),
        more_min=min(other) - min(plain),
        target=target,
        held=held,
    )


def clean_environment() -> dict[str, str]:
    """Return the caller's variables without those that steer overlay or Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OVERLAY", "PYTHON"))}


def interpreter(*arguments: str) -> list[str]:
    """Return the command for a fresh interpreter that sees the environment's packages and nothing else."""
    return [sys.executable, "-I", *arguments]


def seconds() -> float:
    """Return the processor time of this process."""
    return time.process_time()


def run_time(command: list[str], environ: dict[str, str] | None = None) -> float:
    """Run a command and return its processor time in seconds, start and end of the process included.

    `environ` is added to `clean_environment`.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**clean_environment(), **(environ or {})},
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime
