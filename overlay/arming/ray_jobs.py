"""Ray: where this process is enabled and goes on to start a job, the job's workers are armed as well.

Ray hands the settings of a job on in one call, `connect(..., job_config=...)`, once they are complete: what
`ray.init` was given, what `ray job submit` was, and what hooks made of it. There the variables that arm are
added to the `env_vars` of the job's `runtime_env`, but for those that somebody has set; no other field is
touched.

Where that cannot work, it is said once, and in strict mode it is an error, before anything of the job is
sent.
"""

from __future__ import annotations

import os
import sys

from overlay import log
from overlay.arming.variables import says_no, variables
from overlay.base import settings
from overlay.enabling.finder import WatchingFinder
from overlay.enabling.job_log import DRIVER
from overlay.enabling.process import here
from overlay.errors import OverlayError, WorkersError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_WORKER = "ray._private.worker"
_CLIENT = "ray.util.client_connect"
#: The modules whose `connect` sends a job's settings to a cluster: from a driver in it, from a Ray client.
_MODULES = (_WORKER, _CLIENT)
#: Fields of a `runtime_env` by which workers get another Python, in which overlay may not be. (What `pip` and
#: `uv` make sees the packages of the cluster's Python, its start-up files included.)
_OTHER_PYTHONS = ("conda", "container", "image_uri", "py_executable")
#: With what the namespaces begin in which Ray's own processes are drivers, such as those of its dashboard.
_RAYS_OWN = "_ray_internal_"
_DEFAULTS = {"OVERLAY_PATCHES": "all", "OVERLAY_STRICT": "0"}
_LINE = "`import overlay.ray` and `ray.init(runtime_env=overlay.ray.runtime_env(...))`"


class RayJobs:
    """Stands at the calls by which Ray sends a job's settings out."""

    def __init__(self) -> None:
        self._finder: WatchingFinder | None = None
        self._replaced: list[tuple[Any, object, object]] = []
        self._said: set[str] = set()

    def watch(self) -> None:
        """Stand there, now or as soon as Ray is imported.

        Raises:
            WorkersError: In strict mode, if this process is the driver of a job already, which is not armed.
        """
        if self._finder is not None:
            return
        self._finder = WatchingFinder(frozenset(_MODULES), self._imported, first=False)
        self._finder.install()
        for name in _MODULES:
            module = sys.modules.get(name)
            if module is not None and self._finder.has_executed(name, module):
                self._imported(name, module)
        self._look_at_job()

    def leave(self) -> None:
        """Put back what stood there."""
        if self._finder is not None:
            self._finder.remove()
            self._finder = None
        while self._replaced:
            module, original, own = self._replaced.pop()
            if module.__dict__.get("connect") is own:  # somebody else's is left alone
                module.connect = original
        self._said.clear()

    def _imported(self, name: str, module: object) -> None:
        original = getattr(module, "connect", None)
        if self._finder is None or any(original is own for _, _, own in self._replaced):
            return
        names = _parameters(original)
        if "job_config" not in names:
            # In workers that are armed already it does not matter.
            if says_no(os.environ.get("OVERLAY", "")):
                self._refuse(
                    f"{name}.connect is not as overlay knows it: it cannot arm the workers of jobs by itself",
                    _LINE,
                )
            return
        own = self._standing_in(name, module, original, names)
        module.connect = own  # type: ignore[attr-defined]
        self._replaced.append((module, original, own))

    def _standing_in(self, name: str, module: Any, original: Any, names: tuple[str, ...]) -> Any:
        def connect(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            # Workers call it as well, with settings that they were sent.
            starts = given.get("mode") == module.SCRIPT_MODE if name == _WORKER else not _is_client()
            if self._finder is None or not starts:
                return original(*args, **kwargs)
            try:
                config = self._armed(given.get("job_config"), given.get("namespace"))
            except WorkersError:
                if name == _WORKER:
                    module.shutdown()  # of a cluster that `ray.init` has just started for this job
                raise
            place = names.index("job_config")
            if len(args) > place:
                return original(*args[:place], config, *args[place + 1 :], **kwargs)
            return original(*args, **{**kwargs, "job_config": config})

        from functools import update_wrapper

        return update_wrapper(connect, original)

    def _armed(self, config: Any, namespace: object) -> Any:
        """Return the settings of a job, with what arms its workers: a copy, or the very ones.

        Where Ray was started armed, so is its own agent, which starts a job in which those that are submitted
        run. It writes into a log of Ray's: what it said there would be missing in the log of each of them.
        """
        from copy import copy

        config = sys.modules["ray.job_config"].JobConfig() if config is None else config
        env = config.runtime_env or {}
        given = env.get("env_vars") if isinstance(env, dict) else ""
        if not isinstance(given, (dict, type(None))):
            return config  # Ray has something to say about that
        given = given or {}
        said, place = given.get("OVERLAY"), "its runtime_env"
        if said is None:  # an empty variable of a process is none
            said, place = os.environ.get("OVERLAY") or None, "the environment of its driver"
        if says_no(said):
            log.info(f"Ray: the workers of this job are not enabled, as OVERLAY={said} in {place} says")
            return config
        if "OVERLAY" not in given:  # else somebody vouches for it
            self._look_at_python(env)
        added = {
            name: value
            for name, value in variables().items()
            # Who has asked for it has the defaults without a word.
            if name not in given and not ("OVERLAY" in given and _DEFAULTS.get(name) == value)
        }
        users = not str(namespace or getattr(config, "ray_namespace", "") or "").startswith(_RAYS_OWN)
        understood = users and self._understood({**given, **added})
        told = _introduced() if users else {}
        if not added and not told:
            return config
        made = copy(config)
        made.set_runtime_env({**env, "env_vars": {**given, **added, **told}})
        if added and understood:
            shown = " ".join(f"{name}={value}" for name, value in sorted(added.items()))
            log.info(f"Ray: the workers of this job are armed by its runtime_env: {shown}")
        return made

    def _understood(self, sent: dict[str, Any]) -> bool:
        """Return whether workers will understand what they are sent. Refuse a job in which they will not."""
        try:
            _understand({name: value for name, value in sent.items() if isinstance(value, str)})
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
        if not _armed_at_start():
            reason = _why_unarmed()
            if reason:
                self._refuse(
                    f"workers of this job would run without patches: none is armed at its start, as {reason}",
                    f"if they are armed where they run, say so: {_LINE}",
                )

    def _look_at_job(self) -> None:
        """Refuse a process that has started a job already, without what arms its workers."""
        worker = sys.modules.get(_WORKER)
        of_driver = getattr(worker, "global_worker", None)
        said = os.environ.get("OVERLAY") or None
        if getattr(of_driver, "connected", False) and of_driver.mode == worker.SCRIPT_MODE:  # type: ignore[union-attr]
            if "OVERLAY" in _sent(of_driver):
                return
            node = getattr(worker, "_global_node", None)
            if said is not None and node is not None and node.is_head():
                return  # it has started the cluster, and workers have its variables
        elif not _is_client():
            return
        if says_no(said):
            return
        self._refuse(
            "this job was started before overlay.enable() was called: its workers run without patches",
            f"call overlay.enable() first, or arm them yourself: {_LINE}",
        )

    def _refuse(self, reason: str, way_out: str) -> None:
        """Say it once. Raises `WorkersError` instead in strict mode."""
        text = f"Ray: {reason}. Way out: {way_out}"
        if here().strict:
            raise WorkersError(text)
        if text not in self._said:
            self._said.add(text)
            log.warning(text)


def _understand(environ: dict[str, str]) -> None:
    """Read settings as a worker will. Raises `SelectionError` for one that cannot be understood."""
    from overlay.deciding.selection import choose

    settings.armed(environ)
    settings.strict(environ=environ)
    settings.log_level(environ)
    settings.dynamic_cp(environ)
    settings.loss_kernel(environ)
    settings.pin(environ)
    if settings.packs(environ) == settings.packs():  # else other patches are known there
        choose(here().known(), environ=environ)


def _introduced() -> dict[str, str]:
    """Say what this job is run with, and return the variable by which its workers know that it was said."""
    try:
        here().job_log.say_configuration()
    except Exception as error:  # noqa: BLE001 -- no job may fail of a line in a log
        log.warning(f"Ray: what this job is run with cannot be told: {type(error).__name__}: {error}")
        return {}
    return {settings.SAID: DRIVER} if log.heard("info") else {}


def _armed_at_start() -> bool:
    """Return whether the start-up file has armed this process, as it would then a worker."""
    return bool(getattr(sys.modules.get("overlay.arming.startup"), "started", False))


def _why_unarmed() -> str:
    """Return why a new process is not armed, empty if it is."""
    from overlay.arming.startup_file import diagnose

    try:
        return diagnose().reason
    except Exception as error:  # noqa: BLE001 -- no job may fail of a question
        return f"none can be asked ({error!r})"


def knows_source() -> bool:
    """Return whether the calls of the installed Ray are as overlay knows them. Nothing of it is imported."""
    import ast

    from overlay.errors import SourceError
    from overlay.reading.source import InstalledTree

    tree = InstalledTree()
    try:
        nodes = [node for name in _MODULES for node in tree.nodes(f"{name}:connect")]
    except SourceError:
        return False
    found = [node.args for node in nodes if isinstance(node, ast.FunctionDef)]
    return bool(found) and all(
        "job_config" in [one.arg for one in (*args.args, *args.kwonlyargs)] for args in found
    )


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
