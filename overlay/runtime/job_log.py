"""What does this process say in the log of a job? Once what the job is run with, and once what is in place.

The first line, the configuration, comes with the first module that a patch is for, or with the start of a Ray
job. Before that the path is not complete, and a launcher never gets there. Rank 0 says it, or a process that
is no rank. Processes that `multiprocessing` or Ray starts for it do not say it again, and a fork says nothing
unless it is told that it is rank 0. Any other program that it starts may be a job of its own, and says it.

The second line comes when ranks have agreed, from the first of them. If they do not meet, it comes after a
while or at the end of the process, whichever is first, and speaks of this process alone.

Each process looks from time to time whether its patches are still in place, and warns of one that somebody
has replaced: actors of Ray are killed as a rule, and never get to their end.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys

from overlay import log
from overlay.model import settings
from overlay.model.rank import is_first, is_worker, rank
from overlay.model.text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.records.agreement import Account
    from overlay.records.lock import Lock


#: Seconds after the first module that a patch is for, and between looks. As a rule, ranks that will meet have
#: met by then: process groups are made with the model, which may have to wait until other services are there.
QUIET = 300.0
#: The most characters of the line that says what a job is run with.
_WIDTH = 160
#: What a driver tells its workers in `SAID`: the configuration was logged, what is in place was not.
DRIVER = "driver"


class JobLog:
    """Says both, for one engine."""

    def __init__(self, configuration: Callable[[], str], account: Callable[[], Account | None]) -> None:
        self._configured = configuration
        self._account = account
        #: Who else has logged the configuration, empty if nobody has, `None` before that is asked.
        self._before: str | None = None
        #: The name under which this process has logged it, empty if it has not.
        self._said_as = ""
        self._is_fork = False
        self._configuration = ""
        #: What ranks last agreed on, `None` if they did not, empty if they have not met.
        self._agreed: str | None = ""
        #: The ranks, this one included, that last agreed.
        self.compared_with = ""
        #: Whether this process still has to say what is in place.
        self._owes = False
        self._watches = False
        self._compared = False

    def note_fork(self) -> None:
        """Note that this process is a fork of one that may have spoken: it owes nothing."""
        self._is_fork = True
        self._before, self._said_as = self._said_as or self._before, ""
        self._owes = self._watches = False

    def first_module(self) -> None:
        """Speak at the first module that a patch is for. Never raises: an import calls it."""
        try:
            if is_worker() and not self._is_fork:
                self.compare_with_driver()
                told = self._speaker() == DRIVER or os.environ.get(settings.LOADED)
                if is_first() and not told:
                    from overlay.runtime.driver import UNPATCHED

                    log.warning(UNPATCHED)
            self.say_configuration()
            # Otherwise somebody else speaks: rank 0, or the process that started this one.
            if is_first() and self._speaker() != _name() and log.heard("info"):
                self._owes = True
                atexit.register(self.say_alone)
        except Exception as error:  # noqa: BLE001 -- a line in a log must not fail an import
            log.warning(f"the configuration of this job cannot be logged: {type(error).__name__}: {error}")

    def compare_with_driver(self) -> None:
        """Warn once if this worker of Ray has loaded other code than the driver of its job."""
        from overlay.runtime.driver import difference

        if not self._compared and (text := difference()):
            log.warning(text)
        self._compared = True

    def say_configuration(self) -> None:
        """Log the configuration, at `info` if this process speaks for the job."""
        mine = self.speaks
        if mine and log.heard("info"):
            self._said_as = _name()
        if log.heard("info" if mine else "debug"):
            text = self._configured()
            if text != self._configuration:
                self._configuration = text
                (log.info if mine else log.debug)(text)
        if is_first() and log.heard("info"):
            os.environ[settings.SAID] = _name()

    def _say_what_changed(self) -> None:
        """Log the configuration again if it has changed: the path may have led to another upstream."""
        if self._configuration:
            self.say_configuration()

    @property
    def speaks(self) -> bool:
        """Whether this process speaks for the job."""
        return is_first() and not self._speaker()

    def _speaker(self) -> str:
        """Return who else has logged the configuration, empty if nobody has."""
        if self._is_fork and rank() is None:
            return _name()  # the parent of this fork speaks, and may not have got there yet
        if self._before is None:  # a Ray driver may have, or the parent that `multiprocessing` knows
            said = os.environ.get(settings.SAID, "")
            self._before = said if _is_child() or said == DRIVER else ""
        return self._before

    def say_agreed(self, sentence: str) -> None:
        """Say, as the first of some ranks, that they agree: at `debug` if it is the same sentence again."""
        self._say_what_changed()
        (log.debug if sentence == self._agreed else log.info)(sentence)
        self._owes, self._agreed, log.summed_up = False, sentence, True

    def note_disagreement(self) -> None:
        """Note that ranks do not agree. Each raises; one that goes on all the same still says what it has."""
        self._agreed = None

    def clear(self) -> None:
        """Note that nothing is left to say of what is in place here: another rank does, or nothing is."""
        self._owes, self._agreed = False, ""

    def say_alone(self) -> None:
        """Say what is in place in this process, if nobody has. Never raises."""
        owes, self._owes = self._owes, False
        if not owes or not is_first():  # it may be told its rank after it has started
            return
        try:
            account = self._account()
        except Exception as error:  # noqa: BLE001 -- at the end of a process, or in a thread of its own
            log.warning(f"what is applied here cannot be logged: {type(error).__name__}: {error}")
            return
        if account is None:
            return
        self._say_what_changed()
        mine = rank()
        who = "this process" if mine is None else f"rank {mine}"
        if self._agreed is None:
            who = f"the comparison of the ranks failed; {who}"
        elif mine is not None and os.environ.get("WORLD_SIZE") != "1":
            who = f"ranks not compared; {who}"
        log.info(f"{who}: {account.sentence()}")
        log.summed_up = True

    def watch(self) -> None:
        """Look from time to time, from now on, unless this process has only one thread yet.

        From Python 3.12 on, a fork warns of more. It is called after each module that a patch is for, and
        where ranks agree.
        """
        if self._watches or _is_single_threaded():
            return
        from contextlib import suppress

        from overlay.model.signals import blocked

        self._watches = True
        # No more threads, or the interpreter is ending: it is said then.
        with suppress(RuntimeError), blocked():
            _thread.start_new_thread(self._look, ())

    def _look(self) -> None:
        from time import sleep

        while True:
            sleep(QUIET)
            self.say_alone()
            try:
                self._account()  # which warns of what was replaced
            except Exception as error:  # noqa: BLE001 -- what it cannot tell now it cannot tell later
                log.warning(f"what is applied here cannot be told: {type(error).__name__}: {error}")
                return


def introduction(lock: Lock, selected: int, *, strict: bool, pinned: bool) -> str:
    """Return the configuration in a line of at most `_WIDTH` characters. The last versions go if need be."""
    words = [f"{counted(selected, 'patch')} selected", *(["strict"] if strict else [])]
    words += [*(["pinned"] if pinned else []), f"digest {str(lock['digest'])[:12]}"]
    upstreams = {one["project"]: one["version"] for patch in lock["patch"] for one in patch["target"]}
    versions = [*sorted(upstreams.items()), *sorted(lock["environment"].items())]
    named = [f"overlay {lock['overlay']['version']}", f"Python {lock['python']}"]
    named += [f"{name} {version}" for name, version in versions if version]
    left = _WIDTH - len("overlay: configuration: ; ") - len(", ".join(words))
    while len(", ".join(named)) > left:
        named = [*named[:-2], "..."]
    return f"configuration: {', '.join(named)}; {', '.join(words)}"


def _is_child() -> bool:
    """Return whether `multiprocessing` has started this process."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return False
    # It does not know its parent yet while it imports the script.
    return process.parent_process() is not None or hasattr(process.current_process(), "_inheriting")


def _is_single_threaded() -> bool:
    """Return whether this process has one thread, as far as the system tells."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def _name() -> str:
    """Return the name by which this process tells its children that it has spoken."""
    mine = rank()
    return "process" if mine is None else f"rank {mine}"
