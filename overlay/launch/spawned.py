"""Processes that `multiprocessing` spawns, or its fork server forks, are patched as the one that starts them.

Such a process imports the script again, but runs no block for `__main__`: an `overlay.enable()` there does
not reach it. Both kinds start with one call, `multiprocessing.util.spawnv_passfds`, during which the
environment has the variables that arm. torch's `DataLoader` and `torch.multiprocessing` start theirs so too.

A fork server keeps the patches that it was started with. One from before `enable()`, or from before
`disable()`, therefore serves only the processes that it has made; the next one comes from a new server.
"""

from __future__ import annotations

import _thread
import os
import sys
from functools import update_wrapper

from overlay import log
from overlay.launch.interception import Interception
from overlay.launch.ray_jobs import variables
from overlay.model.settings import says_no

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UTIL = "multiprocessing.util"
_CALL = "spawnv_passfds"
_SERVER = "multiprocessing.forkserver"
#: What the module knows of the server that runs, which ends when the descriptor is closed: it stays open.
_STATE = ("_forkserver_pid", "_forkserver_address", "_forkserver_alive_fd")
_UNPATCHED = "processes that it starts run without patches"
_WAY_OUT = "call overlay.enable() at the top of the script, above the block for `__main__`"


class Spawned(Interception):
    """Stands at the call by which `multiprocessing` starts a Python."""

    library = "multiprocessing"
    modules = frozenset({_UTIL})

    def __init__(self) -> None:
        super().__init__()
        #: Why no Python that starts here is armed, empty if one is; `None` until that has been asked.
        self._unarmed: str | None = None
        self.renew_lock()

    def renew_lock(self) -> None:
        """Make the lock: at first, and in the child of a fork, where the thread that held one is gone."""
        self._lock = _thread.allocate_lock()

    def leave(self) -> None:
        """Restore the original."""
        there = self._finder is not None
        super().leave()
        if there and not _renewed_server():
            what = "its fork server cannot be replaced, and goes on making patched processes"
            log.warning(f"multiprocessing: {what}")

    def _look_around(self) -> None:
        if says_no(os.environ.get("OVERLAY", "")) and not _renewed_server():
            self._refuse(
                f"{_UNPATCHED}: its fork server was started before overlay.enable() and cannot be replaced",
                "call overlay.enable() before the first process is started",
            )

    def _imported(self, _: str, util: object) -> None:
        original: Any = getattr(util, _CALL, None)
        if self._finder is None or original is None or any(original is own for *_, own in self._replaced):
            return

        def spawnv_passfds(path: Any, args: Any, passfds: Any) -> Any:
            # The tracker of shared memory and semaphores runs no code of a job.
            tracker = any("resource_tracker" in str(word) for word in args)
            if self._finder is None or tracker or not self._arms():
                return original(path, args, passfds)
            with self._lock:
                added = variables()
                before = {name: os.environ.get(name) for name in added}
                os.environ.update(added)
                try:
                    return original(path, args, passfds)
                finally:
                    for name, value in before.items():
                        if value is None:
                            os.environ.pop(name, None)
                        else:
                            os.environ[name] = value

        self._replace(util, _CALL, update_wrapper(spawnv_passfds, original))

    def _arms(self) -> bool:
        """Return whether the next process can be armed, and may be. Raises `WorkersError` in strict mode."""
        said = os.environ.get("OVERLAY") or None
        if says_no(said):
            if "no" not in self._said:
                self._said.add("no")
                log.info(f"multiprocessing: processes that it spawns are not enabled, as OVERLAY={said} says")
            return False
        if said is None:
            if self._unarmed is None:
                from overlay.launch.startup_file import why_unarmed

                self._unarmed = why_unarmed()
            if self._unarmed:
                self._refuse(f"{_UNPATCHED}: none is armed at its start, as {self._unarmed}", _WAY_OUT)
                return False
        return True


def _renewed_server() -> bool:
    """Make the next process come from a new fork server, and return whether it will.

    The old one lives on for the processes that it has made, until this process ends.
    """
    server: Any = getattr(sys.modules.get(_SERVER), "_forkserver", None)
    if getattr(server, "_forkserver_pid", None) is None:
        return True
    try:
        with server._lock:  # noqa: SLF001 -- there is no other way
            if not all(hasattr(server, name) for name in _STATE):
                return False
            for name in _STATE:
                setattr(server, name, None)
    except AttributeError:  # a Python that keeps it otherwise
        return False
    return True


_spawned = Spawned()
#: Called once this process is enabled, and once it is not any more.
watch, leave = _spawned.watch, _spawned.leave
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_spawned.renew_lock)
