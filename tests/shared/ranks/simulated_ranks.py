"""Ranks that are threads, in a time of their own: it passes only while all of them sleep.

So it makes no difference how fast the machine is, and nobody waits for ten minutes of it.
"""

from __future__ import annotations

import heapq
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from overlay.compat import agreement as compared
from overlay.errors import AgreementError
from overlay.records.agreement import Statement


class Time:
    """Stands in for the module `time` in threads that sleep nowhere else."""

    def __init__(self, threads: int) -> None:
        self._lock = threading.Lock()
        self._awake = threads
        self._alarms: list[tuple[float, int, threading.Event]] = []
        self._now = 0.0

    def monotonic(self) -> float:
        """Return the seconds since the start."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Sleep until that time has come."""
        alarm = threading.Event()
        with self._lock:
            heapq.heappush(self._alarms, (self._now + seconds, id(alarm), alarm))
            self._rest()
        alarm.wait()

    def end(self) -> None:
        """Note that a thread has ended."""
        with self._lock:
            self._rest()

    def _rest(self) -> None:
        self._awake -= 1
        if not self._awake and self._alarms:
            self._now = self._alarms[0][0]
            while self._alarms and self._alarms[0][0] <= self._now:
                self._awake += 1
                heapq.heappop(self._alarms)[-1].set()


class Store:
    """A store in memory, which counts what each thread asks for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        #: How many of these were looks whether something is there.
        self.looked: Counter[str] = Counter()

    def _asked(self, looks: int = 0) -> None:
        name = threading.current_thread().name
        self.asked[name] += 1
        self.looked[name] += looks

    def add(self, key: str, number: int) -> int:
        """Add to a counter, and return what it is then."""
        with self._lock:
            self._asked()
            self._values[key] = str(int(self._values.get(key, "0")) + number)
            return int(self._values[key])

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        with self._lock:
            self._asked()
            self._values[key] = value

    def get(self, key: str) -> str:
        """Read a value that is there."""
        with self._lock:
            self._asked()
            return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all values are there."""
        with self._lock:
            self._asked(not keys[0].rpartition("/")[2].startswith("rank "))
            return all(key in self._values for key in keys)


def compare(
    monkeypatch: pytest.MonkeyPatch,
    ranks: Mapping[int, Statement],
    world: int,
    *,
    patience: float = 590.0,
    late: Mapping[int, float] | None = None,
    store: Store | None = None,
    name: str = "0",
) -> dict[int, str]:
    """Compare ranks, and return what each raises, empty if it raises nothing.

    Args:
        monkeypatch: Gives the ranks their time.
        ranks: What those say of themselves that take part.
        world: How many are in the group.
        patience: Seconds that a rank waits.
        late: Seconds after which ranks come that do not come at once.
        store: Where they meet, if that is not new.
        name: Of the group.

    """
    time, meeting = Time(len(ranks)), store or Store()
    monkeypatch.setattr(compared, "time", time)
    found = dict.fromkeys(ranks, "did not come back")

    def take_part(me: int) -> None:
        try:
            time.sleep((late or {}).get(me, 0.0))
            one = compared.Comparison(meeting, name, range(world), me)
            everywhere, anywhere, _ = one.agree(ranks[me], patience)
            assert {*everywhere} <= {*anywhere}
            found[me] = ""
        except AgreementError as error:
            found[me] = str(error)
        except Exception as error:  # noqa: BLE001 -- the test says that it should not be
            found[me] = f"{error!r} after {time.monotonic()} s"
        finally:
            time.end()

    threads = [threading.Thread(target=take_part, args=(me,), name=str(me)) for me in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def named(text: str) -> set[int]:
    """Return all ranks in a text: those of a table, and those that did not take part."""
    found: set[int] = set()
    for runs in re.findall(r"ranks? ([\d,-]+)", text):
        for run in runs.split(","):
            first, _, last = run.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found
