"""Reports progress on standard error: which file has finished, and about how long the rest will take."""

from __future__ import annotations

import sys
import threading

from overlay.base.record import TYPE_CHECKING
from overlay.suite.results import FAILING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.suite.recipe import Recipe
    from overlay.suite.results import Results

#: Files run in both modes.
_MODES = 2


class Progress:
    """Counts the files of a run, and estimates what is left of it."""

    def __init__(
        self, recipe: Recipe, files: Sequence[str], whole: int, jobs: int, earlier: Mapping[str, float]
    ) -> None:
        """Say how long it will take: as an earlier run, or as the recipe says of all its `whole` files."""
        self._lock = threading.Lock()
        self._jobs = jobs
        self._left = list(files) * _MODES
        self._took = dict(earlier)
        self._total = len(self._left)
        self._limit = recipe.time_limit
        self._guess = _mean(earlier)
        if not earlier and recipe.seconds:
            # It was measured with as many files at once as there are modes.
            self._guess = recipe.seconds / whole
        most = "" if self._guess else "at most "
        about = f"{most}{_readable(self._estimate())}"
        self._say(f"{recipe.name}: {len(files)} files, plain and under overlay, takes {about}")

    def more(self, files: Sequence[str]) -> None:
        """Note that files will be run again."""
        if files:
            with self._lock:
                self._left += list(files) * _MODES
                self._total += _MODES * len(files)
            self._say(f"{len(files)} files again, to tell what is flaky")

    def done(self, mode: str, file: str, found: Results) -> None:
        """Report the outcome of a file."""
        with self._lock:
            self._left.remove(file)
            self._took[file] = found.files[0].seconds
            left, ended, total = self._estimate(), self._total - len(self._left), self._total
        passed = len([test for test in found.tests if test.outcome == "passed"])
        failed = len([test for test in found.tests if test.outcome in FAILING])
        what = f"{passed} passed, {failed} failed, {len(found.tests) - passed - failed} other"
        ended_how = "" if found.files[0].outcome == "finished" else f" {found.files[0].outcome.upper()}"
        self._say(
            f"[{ended}/{total}] {mode:<7} {file}: {what}{ended_how} "
            f"({found.files[0].seconds:.0f} s), about {_readable(left)} left"
        )

    def _estimate(self) -> float:
        guess = self._guess or _mean(self._took) or self._limit
        return sum(self._took.get(file, guess) for file in self._left) / self._jobs

    def _say(self, text: str) -> None:
        sys.stderr.write(f"overlay suite: {text}\n")
        sys.stderr.flush()


def _mean(seconds: Mapping[str, float]) -> float:
    """Return how long a file took on average, 0 if none was run."""
    return sum(seconds.values()) / len(seconds) if seconds else 0.0


def _readable(seconds: float) -> str:
    minute = 60
    return f"{seconds:.0f} s" if seconds < 2 * minute else f"{seconds / minute:.0f} min"
