"""Ray: where this process is enabled and goes on to start a job, the job's workers are armed as well.

Ray hands the settings of a job on in one call, `connect(..., job_config=...)`, once they are complete: what
`ray.init` was given, and what hooks made of it. A job that is submitted, by `ray job submit` or from Python,
goes through `JobSubmissionClient.submit_job(..., runtime_env=...)`. There the variables that arm are added to
the `env_vars` of the job's `runtime_env`, but for those that somebody has set; no other field is touched.

Where that cannot work, it is said once, and in strict mode it is an error, before anything of the job is
sent.
"""

from __future__ import annotations

import os
import sys

from overlay import log
from overlay.errors import OverlayError, WorkersError
from overlay.launch.interception import Interception
from overlay.model import settings
from overlay.runtime.job_log import DRIVER
from overlay.runtime.process import here
from overlay.source.selection import choose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WORKER = "ray._private.worker"
_CLIENT = "ray.util.client_connect"
_JOBS = "ray.dashboard.modules.job.sdk"
#: By module the call that sends a job's settings to a cluster, and the parameter that has them: from a driver
#: in it, from a Ray client, and from whoever submits a job.
_CALLS = {
    _WORKER: ("connect", "job_config"),
    _CLIENT: ("connect", "job_config"),
    _JOBS: ("JobSubmissionClient.submit_job", "runtime_env"),
}
#: Fields of a `runtime_env` by which workers get another Python, in which overlay may not be. (What `pip` and
#: `uv` make sees the packages of the cluster's Python, its start-up files included.)
_OTHER_PYTHONS = ("conda", "container", "image_uri", "py_executable")
#: With what the namespaces begin in which Ray's own processes are drivers, such as those of its dashboard.
_RAYS_OWN = "_ray_internal_"
_DEFAULTS = {"OVERLAY_PATCHES": "all", "OVERLAY_STRICT": "0"}
#: What decides which patches are in force in a process.
_DECIDING = ("OVERLAY_PACKS", "OVERLAY_PIN", "OVERLAY_TRUST", *settings.OPTIONS, "OVERLAY_PATCHES")
_LINE = "`import overlay.ray` and `ray.init(runtime_env=overlay.ray.runtime_env(...))`"


def variables() -> dict[str, str]:
    """Return the variables that arm a process: those that are set here, and what `enable()` was given.

    A relative path in `OVERLAY_PIN`, `OVERLAY_TRUST` or `OVERLAY_LEDGER_DIR` becomes an absolute one.

    Raises:
        SelectionError: A setting cannot be understood.
    """
    found = {name: os.environ[name] for name in settings.VARIABLES if os.environ.get(name)}
    return {**found, **settings.absolute_paths(), **here().asked(), "OVERLAY": "1"}


class RayJobs(Interception):
    """Stands at the calls by which Ray sends a job's settings out."""

    library = "Ray"
    modules = frozenset(_CALLS)

    def _imported(self, name: str, module: object) -> None:
        call, settings_in = _CALLS[name]
        owner_name, _, attribute = call.rpartition(".")
        owner = getattr(module, owner_name, None) if owner_name else module
        original = getattr(owner, attribute, None)
        if self._finder is None or any(original is own for *_, own in self._replaced):
            return
        names = _parameters(original)
        if settings_in not in names:
            # In workers that are armed already it does not matter.
            if settings.says_no(os.environ.get("OVERLAY", "")):
                self._refuse(
                    f"{name}.{call} is not as overlay knows it: it cannot arm the workers of jobs by itself",
                    _LINE,
                )
            return
        change = self._connected
        if name == _JOBS:  # such a job has a driver of its own, which says what it is run with

            def change(given: dict[str, Any]) -> Any:
                return self._armed(given.get("runtime_env") or {}, drives=None)

        own = self._standing_in(name, module, original, names.index(settings_in), change)
        self._replace(owner, attribute, own)

    def _standing_in(self, name: str, module: Any, original: Any, place: int, change: Any) -> Any:
        """Return what calls the original with settings that arm. They are its parameter number `place`."""
        names = _parameters(original)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            # Workers connect as well, with settings that they were sent.
            if name == _WORKER:
                starts = given.get("mode") == module.SCRIPT_MODE
            else:
                starts = name == _JOBS or not _is_client()
            if self._finder is None or not starts:
                return original(*args, **kwargs)
            try:
                made = change(given)
            except WorkersError:
                if name == _WORKER:
                    module.shutdown()  # of a cluster that `ray.init` has just started for this job
                raise
            if len(args) > place:
                return original(*args[:place], made, *args[place + 1 :], **kwargs)
            return original(*args, **{**kwargs, names[place]: made})

        from functools import update_wrapper

        return update_wrapper(stand_in, original)

    def _connected(self, given: dict[str, Any]) -> Any:
        """Return the settings of a job that this process drives, with what arms: a copy, or the very ones.

        Where Ray was started armed, so is its own agent, which starts a job in which those that are submitted
        run. It writes into a log of Ray's: what it said there would be missing in the log of each of them.
        """
        from copy import copy

        config = given.get("job_config")
        config = sys.modules["ray.job_config"].JobConfig() if config is None else config
        namespace = given.get("namespace") or getattr(config, "ray_namespace", "")
        env = config.runtime_env or {}
        armed = self._armed(env, drives=not str(namespace or "").startswith(_RAYS_OWN))
        if armed is env:
            return config
        made = copy(config)
        made.set_runtime_env(armed)
        return made

    def _armed(self, env: Any, *, drives: bool | None) -> Any:
        """Return a `runtime_env` with what arms: a copy, or the very one.

        `drives`: whether this process drives a job of a user's, or one of Ray's; `None` if another one does.
        """
        given = env.get("env_vars") if isinstance(env, dict) else ""
        if not isinstance(given, (dict, type(None))):
            return env  # Ray has something to say about that
        given = given or {}
        said, place = given.get("OVERLAY"), "its runtime_env"
        if said is None:  # an empty variable of a process is none
            said, place = os.environ.get("OVERLAY") or None, "the environment of its driver"
        if settings.says_no(said):
            log.info(f"Ray: the workers of this job are not enabled, as OVERLAY={said} in {place} says")
            return env
        if "OVERLAY" not in given:  # else somebody vouches for it
            self._look_at_python(env)
        added = {
            name: value
            for name, value in variables().items()
            # Who has asked for it has the defaults without a word.
            if name not in given and not ("OVERLAY" in given and _DEFAULTS.get(name) == value)
        }
        understood = drives is not False and self._understood({**given, **added})
        told = _introduced() if drives else {}
        if not added and not told:
            return env
        if added and understood:
            shown = " ".join(f"{name}={value}" for name, value in sorted(added.items()))
            who = "the workers of this job are armed"
            if drives is None:
                who = "this job is armed, if overlay is installed where it runs,"
            log.info(f"Ray: {who} by its runtime_env: {shown}")
        return {**env, "env_vars": {**given, **added, **told}}

    def _understood(self, sent: dict[str, Any]) -> bool:
        """Return whether workers will understand what they are sent. Refuse a job in which they will not."""
        try:
            environ = {name: value for name, value in sent.items() if isinstance(value, str)}
            if settings.read(environ).packs == settings.packs():  # else other patches are known there
                choose(here().known(), environ=environ)
        except OverlayError as error:
            reason = str(error)
        else:
            return True
        self._refuse(
            f"workers of this job would run without patches: {reason}",
            "correct that variable in its runtime_env, or leave it out",
        )
        return False

    def _look_at_python(self, env: dict[str, Any]) -> None:
        """Refuse a job whose workers would not read the variables."""
        for field in _OTHER_PYTHONS:
            # With `uv run`, Ray lets workers start as the driver did.
            words = str(env.get(field) or "").split()
            if words and not (field == "py_executable" and os.path.basename(words[0]) == "uv"):
                self._refuse(
                    f"{field!r} in the runtime_env of this job gives its workers another Python: if "
                    f"overlay is not installed there, they run without patches",
                    f"once it is, say that workers are armed: {_LINE}",
                )
        # What the start-up file has not done here, it need not do in a worker.
        if not getattr(sys.modules.get("overlay.launch.startup"), "started", False):
            from overlay.launch.startup_file import why_unarmed

            if reason := why_unarmed():
                self._refuse(
                    f"workers of this job would run without patches: none is armed at its start, as {reason}",
                    f"if they are armed where they run, say so: {_LINE}",
                )

    def _look_around(self) -> None:
        """Refuse a process that has started a job already, whose workers are not armed as it is."""
        worker = sys.modules.get(_WORKER)
        driver = getattr(worker, "global_worker", None)
        if getattr(driver, "connected", False) and driver.mode == worker.SCRIPT_MODE:  # type: ignore[union-attr]
            sent = _sent(driver)
            if "OVERLAY" in sent:
                different = "" if settings.says_no(sent["OVERLAY"]) else _difference(sent)
                if different:
                    self._refuse(
                        f"the workers of this job run with other settings: {different}",
                        "call ray.shutdown() before overlay.disable(), and ray.init() after overlay.enable()",
                    )
                return
        elif not _is_client():
            return
        if settings.says_no(os.environ.get("OVERLAY") or None):
            return
        self._refuse(
            "this job was started before overlay.enable() was called: its workers run without patches",
            f"call overlay.enable() first, or arm them yourself: {_LINE}",
        )


def _introduced() -> dict[str, str]:
    """Say what this job is run with, and return the variable by which its workers know that it was said."""
    try:
        here().job_log.say_configuration()
    except Exception as error:  # noqa: BLE001 -- no job may fail of a line in a log
        log.warning(f"Ray: what this job is run with cannot be told: {type(error).__name__}: {error}")
        return {}
    return {settings.SAID: DRIVER} if log.heard("info") else {}


def knows_source() -> bool:
    """Return whether the calls of the installed Ray are as overlay knows them. Nothing of it is imported."""
    import ast

    from overlay.errors import SourceError
    from overlay.source.source import InstalledTree

    tree = InstalledTree()
    for module, (call, settings_in) in _CALLS.items():
        try:
            nodes = tree.nodes(f"{module}:{call}")
        except SourceError:
            return False
        found = [node.args for node in nodes if isinstance(node, ast.FunctionDef)]
        if not found or any(
            settings_in not in [one.arg for one in (*args.args, *args.kwonlyargs)] for args in found
        ):
            return False
    return True


def _difference(sent: dict[str, str]) -> str:
    """Return by which setting workers may have other patches in force than this process, empty if by none."""
    now = variables()
    for name in _DECIDING:
        theirs, ours = (one.get(name) or _DEFAULTS.get(name, "") for one in (sent, now))
        if theirs != ours:
            return f"{name}={theirs!r} there, {ours!r} here"
    return ""


def _sent(driver: Any) -> dict[str, Any]:
    """Return the variables that a job was started with, none where that cannot be told."""
    from json import loads

    try:
        return dict(loads(driver.runtime_env).get("env_vars") or {})
    except Exception:  # noqa: BLE001 -- a Ray that says it otherwise
        return {}


def _parameters(function: Any) -> tuple[str, ...]:
    """Return the names of a function's parameters, under decorators: `inspect` is not worth its time here."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code is not None else ()


def _is_client() -> bool:
    """Return whether this process is a connected Ray client."""
    api = getattr(sys.modules.get("ray.util.client"), "ray", None)
    return api is not None and bool(api.is_connected())


_jobs = RayJobs()
#: Called once this process is enabled, and once it is not any more.
watch: Callable[[], None] = _jobs.watch
leave: Callable[[], None] = _jobs.leave
