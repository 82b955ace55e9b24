"""What arms the processes that this one starts, as it is armed itself.

While overlay is enabled, it wraps the calls by which Ray (`ray_jobs`) and `multiprocessing` (`spawned`) start
processes. Where that cannot work, a warning says so once. In strict mode it is an error, before any of a job
is sent.
"""

from __future__ import annotations

import os
import sys

from overlay import log
from overlay.errors import WorkersError
from overlay.model import settings
from overlay.runtime.finder import WatchingFinder
from overlay.runtime.process import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


#: Why processes run without patches, in messages.
NOT_ENABLED = "overlay is not enabled at their start"
#: The variable in which Ray tells the driver of a submitted job how it was submitted, as JSON.
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"


def variables() -> dict[str, str]:
    """Return the variables that arm a process: those that are set here, and what the session was opened with.

    A relative path in `OVERLAY_PIN`, `OVERLAY_TRUST` or `OVERLAY_LEDGER_DIR` becomes an absolute one.

    Raises:
        SelectionError: A setting cannot be understood.
    """
    found = {name: os.environ[name] for name in settings.VARIABLES if os.environ.get(name)}
    asked = here().asked()  # which opens the session
    return {**here().settled, **found, **settings.absolute_paths(), **asked, "OVERLAY": "1"}


def submitted() -> dict[str, Any]:
    """Return the `runtime_env` that this process's job was submitted with, empty if it was not."""
    from json import loads

    try:
        env = dict(loads(os.environ[_JOB])["runtime_env"])
        return {**env, "env_vars": dict(env.get("env_vars") or {})}
    except (KeyError, TypeError, ValueError):
        return {}


def by_hand() -> dict[str, str]:
    """Return the variables that arm, but not those of `submitted()`.

    What vouches stands for those, and tells them from what somebody writes by hand, or copies.
    """
    sent = submitted().get("env_vars", {})
    added = {name: value for name, value in variables().items() if name not in sent}
    if settings.VOUCHED not in sent and ("OVERLAY" in sent or os.environ.get("OVERLAY") or here().asked()):
        # Not the same in a worker that starts a job of its own: its environment has that of its driver.
        added[settings.VOUCHED] = str(os.getpid())
    return added


def armed_at_start() -> bool:
    """Return whether the start-up file has armed this process."""
    return bool(getattr(sys.modules.get("overlay.launch.startup"), "started", False))


class Interception:
    """Wraps a function in each of some modules, now or as soon as the module is imported."""

    def __init__(self, library: str, calls: Mapping[str, str]) -> None:
        """Take the name of the library in messages, and by module the function that is wrapped there."""
        self._library = library
        self._calls = calls
        self._finder: WatchingFinder | None = None
        self._replaced: list[tuple[Any, str, object, object]] = []
        self._said: set[str] = set()
        #: Why no Python that starts here is armed, empty if one is; `None` until that has been asked.
        self._unarmed: str | None = None

    def watch(self) -> None:
        """Wrap the calls. Raises `WorkersError` in strict mode, if unarmed processes run already."""
        if self._finder is not None:
            return
        self._finder = WatchingFinder(frozenset(self._calls), self._imported)
        self._finder.install()
        for name in self._calls:
            module = sys.modules.get(name)
            if module is not None and self._finder.has_executed(name, module):
                self._imported(name, module)
        self._refuse_running()

    def leave(self) -> None:
        """Restore the originals."""
        if self._finder is None:
            return
        self._finder.remove()
        self._finder = None
        while self._replaced:
            owner, attribute, original, own = self._replaced.pop()
            if vars(owner).get(attribute) is own:  # somebody else's is left alone
                setattr(owner, attribute, original)
        self._said.clear()

    def _imported(self, name: str, module: object) -> None:
        """Wrap the function of a module that has been executed, or executed again."""
        *path, attribute = self._calls[name].split(".")
        owner = getattr(module, path[0], None) if path else module
        original = getattr(owner, attribute, None)
        if self._finder is None or any(original is own for *_, own in self._replaced):
            return
        own: Any = self._stand_in(name, module, original)
        if own is not None:
            from functools import update_wrapper

            update_wrapper(own, original)  # type: ignore[arg-type]
            self._replaced.append((owner, attribute, vars(owner)[attribute], own))
            setattr(owner, attribute, own)

    def _stand_in(self, name: str, module: Any, original: Any) -> Any:
        """Return the wrapper of a function, `None` if it stays as it is."""
        raise NotImplementedError

    def _refuse_running(self) -> None:
        """Refuse what runs already and is not armed."""
        raise NotImplementedError

    def _why_unarmed(self) -> str:
        """Return why no Python that starts here is armed, empty if one is."""
        if self._unarmed is None:
            self._unarmed = ""
            # If the start-up file has not run here, it may not run elsewhere either.
            if not armed_at_start():
                from overlay.launch.doctor import why_unarmed

                self._unarmed = why_unarmed()
        return self._unarmed

    def _refuse(self, reason: str, way_out: str) -> None:
        """Warn once that processes are not patched. Raises `WorkersError` instead in strict mode."""
        text = f"{self._library}: {reason}. What to do: {way_out}"
        if here().strict:
            raise WorkersError(text)
        if text not in self._said:
            self._said.add(text)
            log.warning(text)
