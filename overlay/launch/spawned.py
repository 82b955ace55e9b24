"""Arms the processes that `multiprocessing` spawns, as this one is armed itself.

Such a process imports the script again, but runs no block for `__main__`: an `overlay.enable()` there does
not reach it. It starts with one call, `multiprocessing.util.spawnv_passfds`, and so does a fork server.
During that call, the environment has the variables that arm. torch's `DataLoader` and
`torch.multiprocessing` start their processes in the same way.
"""

from __future__ import annotations

import _thread
import os
import sys

from overlay import log
from overlay.errors import OverlayError
from overlay.launch.workers import NOT_ENABLED, Interception, variables
from overlay.model import settings
from overlay.model.text import counted
from overlay.runtime.process import here
from overlay.source.registry import awaited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What `multiprocessing` knows of its fork server, which ends when the descriptor is closed: it stays open.
_SERVER = ("_forkserver_pid", "_forkserver_address", "_forkserver_alive_fd")
_UNPATCHED = "processes that it starts run without patches"
_START_UP_FILE = "see to it that they read the start-up file, as `overlay doctor` says"


class Spawned(Interception):
    """Wraps the call by which `multiprocessing` starts a Python.

    A fork server keeps the patches that it was started with. One from before `enable()`, or from before
    `disable()`, therefore serves only the processes that it has made; the next one comes from a new server.
    """

    def __init__(self) -> None:
        super().__init__("multiprocessing", {"multiprocessing.util": "spawnv_passfds"})
        #: Whether it adds the variables that arm. The environment that has armed this process may have them.
        self._adds = True
        #: For each other Python, why it is not armed, empty if it is.
        self._others: dict[str, str] = {}
        self.renew_lock()

    def watch(self, *, adds: bool = True) -> None:
        """Wrap the call. Raises `WorkersError` in strict mode, if a fork server runs that is not armed."""
        self._adds = adds
        super().watch()

    def renew_lock(self) -> None:
        """Make the lock: at the start, and in a fork, where the thread that held it is gone."""
        self._lock = _thread.allocate_lock()

    def _stand_in(self, _name: str, _module: Any, original: Any) -> Any:
        def spawnv_passfds(path: Any, args: Any, passfds: Any) -> Any:
            # The tracker of shared memory and semaphores runs no code of a job. Its program is the last word;
            # a filter of warnings, among the words before it, may have the same name.
            tracker = str(args[-1]).startswith("from multiprocessing.resource_tracker import")
            if self._finder is None or tracker or not self._arms(os.fsdecode(path)):
                return original(path, args, passfds)
            if not self._added():
                return original(path, args, passfds)
            with self._lock:
                added = variables()
                before = {variable: os.environ.get(variable) for variable in added}
                os.environ.update(added)
                try:
                    return original(path, args, passfds)
                finally:
                    for variable, value in before.items():
                        if value is None:
                            os.environ.pop(variable, None)
                        else:
                            os.environ[variable] = value

        return spawnv_passfds if original is not None else None

    def _added(self) -> bool:
        """Return whether the next process gets variables beside those of this one's environment."""
        return self._adds or not os.environ.get("OVERLAY")  # which the program may have taken away

    def _arms(self, python: str) -> bool:
        """Return whether the next process can be armed, and may be.

        Raises `WorkersError` in strict mode, and there or under a pin what is wrong with a setting.
        """
        said = os.environ.get("OVERLAY") or None
        if settings.says_no(said):
            if "no" not in self._said:
                self._said.add("no")
                log.info(f"multiprocessing: spawned processes are not patched, because of OVERLAY={said}")
            return False
        reason, way_out = "", "call overlay.enable() at the top of the script, above the block for `__main__`"
        try:
            _check_settings()
            if not self._added():  # else the process gets the selection of this one
                settings.select(here().known() if settings.packs() else awaited()[1])
        except OverlayError as error:
            # A child that stops at its start is started again for ever, by a `Pool`.
            if here().strict or settings.pin():
                raise
            reason, way_out = str(error), "correct that setting"
        if not reason and (reason := self._why_unarmed()):
            way_out = f"{_START_UP_FILE}, or (unless in strict mode) {way_out}: there it is right"
        if reason := reason or self._why_other(python):
            self._refuse(f"{_UNPATCHED}: {NOT_ENABLED}, as {reason}", way_out)
        return not reason

    def _why_other(self, python: str) -> str:
        """Return why the Python of `multiprocessing.set_executable` is not armed, empty if it is, or ours."""
        if python not in (sys.executable, *self._others):
            from overlay.launch.doctor import armed_environment, ask, refusal
            from overlay.launch.interpreter import Interpreter

            other = Interpreter(path=python)
            self._others[python] = refusal(other, ask(other, armed_environment()))
        return self._others.get(python, "")

    def _refuse_running(self) -> None:
        if self._adds and not _renewed_server():  # one that runs may be armed in another way
            self._refuse(
                f"{_UNPATCHED}: its fork server was started before overlay.enable() and cannot be replaced",
                "call overlay.enable() before the first process is started",
            )
        _tell_of_running("enable")

    def leave(self) -> None:
        """Restore the original."""
        there = self._finder is not None
        super().leave()
        if there:
            _tell_of_running("disable")
        if there and not settings.says_no(os.environ.get("OVERLAY", "")):
            way_out = "set os.environ['OVERLAY'] = '0' before they start"
            what = "OVERLAY is set: new processes are patched"
            log.warning(f"multiprocessing: {what}. To avoid that: {way_out}")
        if there and not _renewed_server():
            what = "its fork server cannot be replaced, and goes on making patched processes"
            log.warning(f"multiprocessing: {what}")


def _tell_of_running(call: str) -> None:
    """Warn of processes that a call of overlay's does not reach, as they run already."""
    running: Any = sys.modules.get("multiprocessing")
    children = running.active_children() if running is not None else ()
    # A child of `os.fork()` still has the list of its parent.
    own = [child for child in children if getattr(child, "_parent_pid", os.getpid()) == os.getpid()]
    if own:
        what = f"overlay.{call}() does not reach {counted(len(own), 'process')} running here"
        way_out = "call it before they are started (those of joblib and loky need OVERLAY=1)"
        log.warning(f"multiprocessing: {what}: no patch comes or goes there. To avoid that: {way_out}")


def _check_settings() -> None:
    """Raise `OverlayError` if a process with the settings of now could not be enabled."""
    settings.check()
    pin = settings.pin()
    if pin and not pin.startswith(settings.DIGEST_PREFIX):
        from overlay.records.lock import read

        read(pin)
    if settings.trust():
        from overlay.source.registry import tables

        tables()


def _renewed_server() -> bool:
    """Make the next process come from a new fork server, and return whether it will.

    The old one lives on for the processes that it has made, until this process ends.
    """
    server: Any = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if getattr(server, "_forkserver_pid", None) is None:
        return True
    # This Python keeps its fork server in another way.
    if not hasattr(server, "_lock") or not all(hasattr(server, name) for name in _SERVER):
        return False
    with server._lock:  # noqa: SLF001 -- there is no other way
        for name in _SERVER:
            setattr(server, name, None)
    return True


SPAWNED = Spawned()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SPAWNED.renew_lock)
