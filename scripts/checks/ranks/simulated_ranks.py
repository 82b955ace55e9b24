"""Ranks that are threads, in a time of their own: it passes only while all of them sleep.

So it makes no difference how fast the machine is, and nobody waits for ten minutes of it.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from typing import TYPE_CHECKING

from overlay.compat import agreement as compared
from overlay.errors import AgreementError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pytest

    from overlay.pinning.agreement import Testimony


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
        #: The length of what was sent to and fro.
        self.letters = 0

    def _exchange(self, what: Callable[[], str]) -> str:
        with self._lock:
            self.asked[threading.current_thread().name] += 1
            found = what()
            self.letters += len(found)
            return found

    def add(self, key: str, number: int) -> int:
        """Add to a counter, and return what it is then."""

        def add() -> str:
            self._values[key] = str(int(self._values.get(key, "0")) + number)
            return self._values[key]

        return int(self._exchange(add))

    def set(self, key: str, value: str) -> None:
        """Write a value."""
        self._exchange(lambda: self._values.setdefault(key, value) and self._values.update({key: value}) or value)

    def get(self, key: str) -> str:
        """Read a value that is there."""
        return self._exchange(lambda: self._values[key])

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all values are there."""
        return bool(self._exchange(lambda: "yes" if all(key in self._values for key in keys) else ""))


def compare(  # noqa: PLR0913 -- what may be drawn of a job
    monkeypatch: pytest.MonkeyPatch,
    ranks: Mapping[int, Testimony],
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
            everywhere, anywhere = one.agree(ranks[me], patience)
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
