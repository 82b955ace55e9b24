"""Arms the processes of Ray jobs, as this one is armed itself.

Ray hands the settings of a job on in one call, `connect(..., job_config=...)`, once they are complete: what
`ray.init` was given, and what hooks made of it. A job that is submitted, by `ray job submit` or from Python,
goes through `JobSubmissionClient.submit_job(..., runtime_env=...)`. Each wrapper adds the variables that arm
to the `env_vars` of the job's `runtime_env`, except those that somebody has set. Of other fields it adds the
hook alone, in strict and pinned jobs.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from overlay import log
from overlay.errors import WorkersError
from overlay.launch.workers import NOT_ENABLED, Interception, armed_at_start, submitted, variables
from overlay.model import settings
from overlay.model.rank import note_driver
from overlay.runtime.job_log import DRIVER
from overlay.runtime.process import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_WORKER = "ray._private.worker"
_CLIENT = "ray.util.client_connect"
_JOBS = "ray.dashboard.modules.job.sdk"
#: By module, the call by which any process of a job starts an actor or a task.
_STARTS = {"ray.actor": "ActorClass._remote", "ray.remote_function": "RemoteFunction._remote"}
#: Fields of a `runtime_env` that give workers another Python, which may lack overlay. (The environments of
#: `pip` and `uv` see the packages of the cluster's Python, or are a copy of its virtual environment.)
_OTHER_PYTHONS = ("conda", "container", "image_uri", "py_executable")
#: The prefix of namespaces in which Ray's own processes, such as those of its dashboard, are drivers.
_RAYS_OWN = "_ray_internal_"
_DEFAULTS = {"OVERLAY_PATCHES": "all", "OVERLAY_STRICT": "0"}
#: What decides which patches are in force in a process.
_DECIDING = ("OVERLAY_PACKS", "OVERLAY_PIN", "OVERLAY_TRUST", "OVERLAY_PATCHES")
#: The field of a `runtime_env` for what Ray calls in each worker before its first task.
_HOOK = "worker_process_setup_hook"
#: The variable in which Ray sends that.
_HOOK_OF_RAY = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
#: What helps where Ray starts workers by `uv run`.
_UV = (
    "`uv add` it, or have workers use the Python of the cluster: set RAY_ENABLE_UV_RUN_RUNTIME_ENV=0, "
    "and leave out py_executable"
)
_LINE = "`import overlay.ray` and `ray.init(runtime_env=overlay.ray.runtime_env(...))`"


class RayJobs(Interception):
    """Wraps the calls by which a driver, a client and a submitter send the settings of a job.

    A worker that enables itself sends none: it is told of each actor and task that it starts unpatched.
    """

    def __init__(self) -> None:
        submit = "JobSubmissionClient.submit_job"
        super().__init__("Ray", {_WORKER: "connect", _CLIENT: "connect", _JOBS: submit, **_STARTS})

    def _stand_in(self, name: str, module: Any, original: Any) -> Any:
        if name in _STARTS:
            return self._started_by_worker(original)
        names, settings_in = _parameters(original), "runtime_env" if name == _JOBS else "job_config"
        if settings_in not in names:
            # It does not matter in workers, which the environment has armed.
            if settings.says_no(os.environ.get("OVERLAY", "")):
                call = f"{name}.{self._calls[name]}"
                what = f"{call} is not as overlay knows it: it cannot arm the workers of jobs by itself"
                self._refuse(what, _LINE)
            return None

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            if name == _WORKER:  # workers, and servers of clients, connect with settings that they were sent
                sent = getattr(given.get(settings_in), "_client_job", False)
                starts = given.get("mode") == module.SCRIPT_MODE and not sent
            else:
                starts = name == _JOBS or not _is_client()
            if self._finder is None or not starts:
                return original(*args, **kwargs)
            try:
                if name == _JOBS:  # such a job has a driver of its own, which says what it is run with
                    made = self._armed(given.get(settings_in) or {}, drives=None)
                else:
                    made = self._connected(given)
            except WorkersError:
                if name == _WORKER:
                    module.shutdown()  # of a cluster that `ray.init` has just started for this job
                raise
            return original(**{**given, settings_in: made})

        return stand_in

    def _started_by_worker(self, original: Any) -> Any:
        def remote(*args: Any, **kwargs: Any) -> Any:
            worker = sys.modules[_WORKER]
            # What arms a worker at its start arms those that it starts.
            late = self._finder is not None and not armed_at_start()
            if late and worker.global_worker.mode == worker.WORKER_MODE:
                own = (kwargs.get("runtime_env") or {}).get("env_vars") or {}
                if "OVERLAY" not in {**_sent(), **own}:
                    self._refuse(
                        "overlay.enable() was called in a worker: the actors and tasks that it starts run "
                        "without patches",
                        "call it in the driver, before ray.init, or start them with "
                        "`.options(runtime_env=overlay.ray.runtime_env())`",
                    )
            return original(*args, **kwargs)

        return remote if original is not None else None

    def _connected(self, given: dict[str, Any]) -> Any:
        """Return the settings of a job that this process drives, with the variables that arm.

        If Ray was started armed, so is its agent. Submitted jobs run in a job that the agent drives. It logs
        to a file of Ray's: what it said there would be missing in the log of each submitted job.
        """
        from copy import copy

        config = given.get("job_config")
        config = sys.modules["ray.job_config"].JobConfig() if config is None else config
        namespace = given.get("namespace") or getattr(config, "ray_namespace", "")
        env = config.runtime_env or {}
        drives = not str(namespace or "").startswith(_RAYS_OWN)
        if drives:
            note_driver()
        armed = self._armed(env, drives=drives, hooks="mode" in given)  # a client's Ray takes no hook
        if armed is env:
            return config
        made = copy(config)
        made.set_runtime_env(armed)
        return made

    def _armed(self, env: Any, *, drives: bool | None, hooks: bool = False) -> Any:
        """Return a `runtime_env` with the variables that arm: a copy, or the same if there is nothing to add.

        `drives`: whether this process drives a user's job, or one of Ray's; `None` if another process drives.
        `hooks`: whether a strict or pinned job may get a hook, by which the first task fails where overlay is
        not installed: the cluster's Python may be another one. It may not in a client, whose `env` lacks what
        the job was submitted with.
        """
        given = env.get("env_vars") if isinstance(env, dict) else ""
        if not isinstance(given, (dict, type(None))):
            return env  # Ray raises an error for that
        env, given = _without_own_hook(env, given or {})
        said, place = given.get("OVERLAY"), "its runtime_env"
        if said is None:  # an empty variable of a process counts as unset
            said, place = os.environ.get("OVERLAY") or None, "the environment of its driver"
        if settings.says_no(said):
            log.info(f"Ray: the workers of this job are not patched, because of OVERLAY={said} in {place}")
            return {**env, "env_vars": {"OVERLAY": said, **given}} if drives else env
        # Ray has merged what the job was submitted with. The driver runs in that Python and is patched, but
        # whoever submitted the job could not vouch for workers, which may run elsewhere.
        before = submitted() if hooks else {}
        theirs = before.get("env_vars", {})
        vouched = _are_vouched_for(given, theirs)
        if drives is None:  # who submits a job has no other way to say so
            vouched = vouched or "OVERLAY" in given
        held = here().strict or bool(settings.pin())
        hook = {_HOOK: _require} if drives and hooks and held and not (vouched or env.get(_HOOK)) else {}
        own = {name: env[name] for name in {*env} - {*before}}
        sure = vouched or self._reads_variables(own, hooked=bool(hook))
        added = {name: value for name, value in variables().items() if name not in given}
        if drives is None:  # the job's driver may be run with something else, by `overlay run`
            unset = {name: _DEFAULTS[name] for name in _DEFAULTS if not os.environ.get(name)}
            added = {name: value for name, value in added.items() if unset.get(name) != value}
        if drives:  # a worker has the cluster's environment; empty is as good as unset
            added.update((name, "") for name in _DECIDING if name not in {**added, **given})
        if drives:  # Ray takes no variable twice: what the job was submitted with holds for its workers
            names = (*_DEFAULTS, "OVERLAY_PACKS")
            fixed = [name for name in names if name in theirs and given.get(name) == theirs[name]]
            self._compare(theirs, fixed, "submit the job with these settings, or with OVERLAY=1 alone")
        told = _announced() if drives else {}
        # Nor does it vouch for the workers of a job that it submits, which has a driver of its own.
        made = {**{name: given[name] for name in given if drives or name != settings.VOUCHED}, **added}
        if drives is not False:
            where, who = ("the workers of this job", "they run") if drives else ("this job", "the job runs")
            where += "" if hook else f", if it is installed where {who},"
            what = f"overlay is enabled in {where} by its runtime_env"
            _say(
                what if sure else "the variables that enable overlay are in the runtime_env of this job",
                added if vouched else {name: made[name] for name in variables() if name in made},
            )
        return {**env, **hook, "env_vars": {**made, **told}} if hook or told or made != given else env

    def _reads_variables(self, env: dict[str, Any], *, hooked: bool) -> bool:
        """Return whether the workers of a job read the variables, and refuse the job if they may not.

        `hooked`: whether our hook looks for itself, in each worker.
        """
        sure = True
        for field in _OTHER_PYTHONS:
            words = str(env.get(field) or "").split()
            # With `uv run`, which sets that variable, Ray starts workers by the same command.
            uv = field == "py_executable" and "UV_RUN_RECURSION_DEPTH" in os.environ
            if words and uv and os.path.basename(words[0]) == "uv":
                if not (hooked or _is_in_project(words)):
                    sure = False
                    self._refuse(
                        "workers run by `uv run`, in an environment that uv makes of the project: if overlay "
                        "is only installed in this one, they run without patches",
                        _UV,
                    )
            elif words:
                sure = False
                self._refuse(
                    f"{field!r} in the runtime_env of this job gives its workers another Python: if "
                    f"overlay is not installed there, they run without patches",
                    f"once it is, say that overlay is enabled in workers: {_LINE}; if you submit the job: "
                    "set OVERLAY=1 and OVERLAY_STRICT=1 in the env_vars of its runtime_env",
                )
        if reason := self._why_unarmed():
            sure = False
            self._refuse(
                f"workers of this job would run without patches: {NOT_ENABLED}, as {reason}",
                f"if it is enabled where they run, say so: {_LINE}",
            )
        return sure

    def _compare(self, sent: dict[str, Any], names: Iterable[str], way_out: str) -> None:
        """Refuse a job whose workers are sent other settings than this process has."""
        now = variables()
        for name in names:
            theirs, ours = (one.get(name) or _DEFAULTS.get(name, "") for one in (sent, now))
            if _meant(name, theirs) != _meant(name, ours):
                what = (
                    f"the workers of this job run with other settings: {name}={theirs!r} there, {ours!r} here"
                )
                self._refuse(what, way_out)
                return

    def leave(self) -> None:
        """Restore the originals."""
        there = self._finder is not None
        super().leave()
        sent = (_sent_to_running() if there else None) or {}
        if "OVERLAY" in sent and not settings.says_no(sent["OVERLAY"]):
            log.warning(
                "Ray: the workers of this job stay patched. What to do: call ray.shutdown(), then ray.init()"
            )

    def _refuse_running(self) -> None:
        """Refuse a process that has started a job already, whose workers are not armed as it is."""
        sent = _sent_to_running()
        if sent is None:
            return
        if "OVERLAY" in sent:
            if not settings.says_no(sent["OVERLAY"]):
                way_out = (
                    "call ray.shutdown() before overlay.disable(), and ray.init() after overlay.enable()"
                )
                self._compare(sent, _DECIDING, way_out)
        elif not settings.says_no(os.environ.get("OVERLAY") or None):
            self._refuse(
                "this job was started before overlay.enable() was called: its workers run without patches",
                f"call overlay.enable() first, or arm them yourself: {_LINE}",
            )


def _without_own_hook(env: dict[str, Any], given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a `runtime_env` and its variables without our hook, which is added anew.

    In what a worker hands on to another job, Ray has it in both, and refuses that.
    """
    if env.get(_HOOK) != _require.__name__:
        return env, given
    given = {name: value for name, value in given.items() if name != _HOOK_OF_RAY}
    return {name: env[name] for name in env if name != _HOOK} | {"env_vars": given}, given


def _are_vouched_for(given: dict[str, Any], submitted: dict[str, Any]) -> bool:
    """Return whether a driver says by `overlay.ray` that overlay is installed where its workers run.

    It may hand on its whole environment, with what its own driver has vouched for.
    """
    known = {**os.environ, **submitted}
    return settings.VOUCHED in given and given[settings.VOUCHED] != known.get(settings.VOUCHED)


def _say(what: str, sent: dict[str, Any]) -> None:
    """Log which variables a job is sent."""
    shown = " ".join(f"{name}={value}" for name, value in sorted(sent.items()) if value)
    if shown:
        log.info(f"Ray: {what}: {shown}")


def _is_in_project(words: list[str]) -> bool:
    """Return whether a project that `uv run` runs needs overlay, or its command does."""
    from itertools import pairwise

    text = ""
    with suppress(OSError):  # this folder may be gone
        folder, name = os.getcwd(), "pyproject.toml"
        while not os.path.isfile(os.path.join(folder, name)) and folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            text = "".join(line.partition("#")[0] for line in file)
    needed = [word for option, word in pairwise(words) if option.startswith("--with")]
    # The end of what overlay is distributed as.
    return "-overlay" in text or any("overlay" in word for word in needed)


def _require() -> None:
    """Raise in a worker of a strict or pinned job that was not enabled at its start, unless it says no.

    Ray pickles it whole: overlay may not be where it runs.
    """
    import os
    import sys
    from importlib import import_module

    if os.environ.get("OVERLAY", "").strip().lower() in ("", "0", "false", "no", "off"):
        return
    try:
        startup = import_module("overlay.launch.startup")
    except ImportError:
        way_out = "install it there, or start what runs there with OVERLAY=0 in its env_vars"
        if "UV_RUN_RECURSION_DEPTH" in os.environ:
            way_out += "; `uv run` takes it from pyproject.toml: see `uv add`"
        if "runtime_resources" in sys.executable and "virtualenv" in sys.executable:
            # Ray made it for `pip` or `uv`, and keeps it. `uv run` has the environment of the project.
            way_out = "install it in the cluster's Python, and restart Ray, which reuses this environment"
        what = f"{sys.executable} has no overlay, and the job is strict or pinned"
        raise RuntimeError(f"{what}: {way_out}") from None
    startup.refuse()


_require.__module__ = "__main__"  # so that Ray does


def _announced() -> dict[str, str]:
    """Log the configuration of this job, and return the variables that tell its workers of it."""
    from overlay.runtime.driver import loaded

    try:
        here().job_log.say_configuration()
        # Some hand on their environment to each worker, as NeMo-RL does.
        os.environ[settings.LOADED] = loaded()
    except Exception as error:  # noqa: BLE001 -- a line in a log must not fail a job
        log.warning(f"Ray: the configuration of this job cannot be logged: {type(error).__name__}: {error}")
        return {}
    return {settings.SAID: DRIVER, settings.LOADED: os.environ[settings.LOADED]}


def _meant(name: str, text: str) -> object:
    """Return what the value of a variable means: it can be written in several ways."""
    if name == "OVERLAY_STRICT":
        return settings.says_no(text)
    return settings.asked(text) if name in ("OVERLAY_PATCHES", "OVERLAY_PACKS") else text


def _sent_to_running() -> dict[str, Any] | None:
    """Return the variables of the job that this process drives, `None` if it drives none."""
    worker = sys.modules.get(_WORKER)
    driver = getattr(worker, "global_worker", None)
    direct = getattr(driver, "connected", False) and driver.mode == worker.SCRIPT_MODE  # type: ignore[union-attr]
    return _sent() if direct or _is_client() else None


def _sent() -> dict[str, Any]:
    """Return the variables of the job that this process is part of, none where that cannot be told."""
    from json import loads

    try:
        found = sys.modules["ray"].get_runtime_context().get_runtime_env_string()
        return dict(loads(found).get("env_vars") or {})
    except Exception:  # noqa: BLE001 -- a Ray that says it otherwise
        return {}


def _parameters(function: Any) -> tuple[str, ...]:
    """Return the names of a function's parameters, also under decorators. `inspect` takes too long."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code is not None else ()


def _is_client() -> bool:
    """Return whether this process is a connected Ray client."""
    api = getattr(sys.modules.get("ray.util.client"), "ray", None)
    return api is not None and bool(api.is_connected())


RAY = RayJobs()
