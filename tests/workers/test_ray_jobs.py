"""Ray: a driver that calls `overlay.enable()` arms the workers of its jobs, on a real local cluster."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from local_cluster import HERE, PATIENCE, Cluster, running
from worksite import PATCHED, PLAIN, Venv

import overlay.ray
from overlay.errors import WorkersError
from overlay.launch import ray_jobs, startup, workers
from overlay.model import rank as ranks
from overlay.runtime.driver import loaded
from overlay.runtime.job_log import JobLog

PATCH = "acme/fakeup.scale"
COMPANIONS = ("megatron.agreement", "megatron.known-defects", "verl.agreement", "verl.known-defects")
ARMED = {
    "value": int(PATCHED),
    "selection": [PATCH, *COMPANIONS],
    "patches": {PATCH: "applied", **dict.fromkeys(COMPANIONS, "waiting")},
}
#: overlay is there and has an empty ledger, or none was asked for.
UNARMED = {"value": int(PLAIN), "selection": [], "patches": {}}


#: What arms a whole cluster.
ENVIRONMENT = {"OVERLAY": "1", "OVERLAY_PACKS": "acme", "OVERLAY_PATCHES": PATCH}

#: What a worker is told: that it is armed, and that what the job is run with was said.
TOLD = {
    "OVERLAY": "1",
    "OVERLAY_SAID": "driver",
    "OVERLAY_LOADED": loaded(),
    **dict.fromkeys(ray_jobs._DECIDING, ""),
}


@pytest.fixture(scope="module")
def cluster(worksite: Venv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster that nobody has armed, of which nothing is left afterwards."""
    with running(worksite, tmp_path_factory.mktemp("cluster")) as found:
        yield found


def of(found: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in like}


def test_the_workers_of_a_driver_that_is_enabled_are_too(cluster: Cluster) -> None:
    found, done = cluster.job("first")
    for kind in ("task", "actor", "again", "handed on"):
        assert of(found[kind], ARMED) == ARMED, kind
        assert found[kind]["strict"]
    # What the user gave is there, and what he gave it in is as it was.
    assert found["task"]["set"] == found["actor"]["set"] == {"MINE": "1", "HOOKED": "yes"}
    assert found["given"] == {"env_vars": {"MINE": "1"}, "worker_process_setup_hook": "hook"}
    assert found["put back"]
    *said, last = [line for line in done.stderr.splitlines() if line.startswith("overlay: Ray:")]
    assert last.startswith("overlay: Ray: the workers of this job stay patched. What to do:")
    wanted = "OVERLAY=1 OVERLAY_PACKS=acme OVERLAY_PATCHES=acme/* OVERLAY_STRICT=1"
    enabled = "overlay: Ray: overlay is enabled in the workers of this job"
    # The first job has a hook of its own, and none of overlay's.
    for line, sure in zip(said, (", if it is installed where they run,", "", ""), strict=True):
        assert line == f"{enabled}{sure} by its runtime_env: {wanted}"
    # The driver says what the job is run with, for all of its jobs; its workers, what they have.
    (line,) = [line for line in done.stderr.splitlines() if "overlay: configuration" in line]
    assert "; 5 patches selected, strict, digest " in line
    has = f"overlay: this process: 1 applied, 0 refused, digest {line.rpartition(' ')[2]}"
    heard = re.findall(r"pid=\d+\)\S* (overlay: [^\[\x1b\n]*)", done.stdout + done.stderr)
    assert {line.strip() for line in heard} == {has}


def test_a_driver_that_is_armed_and_arms_its_workers_by_hand(cluster: Cluster) -> None:
    found, _ = cluster.job("by_hand", OVERLAY="1", OVERLAY_PATCHES=PATCH)
    for kind in ("driver", "task", "actor", "task of an actor"):
        assert found[kind]["value"] == int(PATCHED), kind
    assert found["task"]["set"] == found["actor"]["set"] == {"MINE": "1", "HOOKED": "yes"}
    # A class that Ray pickles takes what is patched in it to a worker that is not patched.
    assert found["whole"] == [int(PATCHED) + 1, []]
    assert found["unarmed"]["value"] == int(PLAIN)
    assert found["half-patched"] == ["fakeup.core:Engine.run of acme/fakeup.scale"]


@pytest.mark.parametrize(
    ("kind", "variables"), [("by_itself", {"OVERLAY_PACKS": "acme"}), ("asked", ENVIRONMENT)]
)
def test_a_submitted_job(cluster: Cluster, kind: str, variables: dict[str, str]) -> None:
    """It enables itself, or the variables arm it that it is submitted with."""
    found = cluster.submitted(kind, {"env_vars": {"SUBMITTED": "yes", **variables}})
    for worker in ("task", "actor"):
        assert found[worker]["value"] == int(PATCHED)
        assert found[worker]["set"] == {"SUBMITTED": "yes"}


def test_a_cluster_that_was_started_armed(worksite: Venv, tmp_path: Path) -> None:
    """As by `overlay run` before a script that starts Ray and submits a job that knows nothing of overlay."""
    with running(worksite, tmp_path, 0, **ENVIRONMENT) as armed:
        done = armed.submit([str(HERE / "ray_job.py"), "asked"], {"env_vars": {"SUBMITTED": "yes"}})
        plain, alone = armed.job("asked")
        other, _ = armed.job("asked", OVERLAY="1", OVERLAY_PACKS="")
    assert (other["task"]["value"], other["actor"]["value"]) == (int(PLAIN), int(PLAIN))
    assert plain["task"]["value"] == int(PATCHED)
    assert "the driver of its job does not seem to be" in alone.stdout + alone.stderr
    assert "the driver of its job" not in done.stdout + done.stderr
    printed = done.stdout + done.stderr
    (found,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for kind in ("task", "actor"):
        assert of(found[kind], ARMED) == ARMED, kind
    # Each job says in its own log what it is run with, once.
    assert printed.count("overlay: configuration: ") == 1, printed[-4000:]


def test_who_opts_out_is_left_alone(cluster: Cluster) -> None:
    found, done = cluster.job("opted_out")
    assert of(found["by the job"], UNARMED) == UNARMED
    assert found["by the job"]["set"] == {"MINE": "1"}
    assert of(found["by the driver"], UNARMED) == UNARMED
    said = [line for line in done.stderr.splitlines() if line.startswith("overlay: Ray:")]
    begin = "overlay: Ray: the workers of this job are not patched, because of OVERLAY="
    assert said == [f"{begin}0 in its runtime_env", f"{begin}off in the environment of its driver"]


def test_a_job_that_is_there_already_is_heard_of_once(cluster: Cluster) -> None:
    found, done = cluster.job("late")
    assert "before overlay.enable() was called" in found["strict"]
    assert "ray.init(runtime_env=overlay.ray.runtime_env(...))" in found["strict"]
    assert not found["enabled"]
    assert of(found["job"]["actor"], UNARMED) == UNARMED
    before, after = done.stderr.split("armed by hand")
    assert before.count("its workers run without patches") == 1
    assert "stay patched" not in before
    assert "overlay: Ray:" not in after


def test_a_job_that_was_started_with_other_settings_is_heard_of(cluster: Cluster) -> None:
    found, _ = cluster.job("otherwise")
    assert "OVERLAY_PATCHES='none' there, 'acme/*' here" in found["others"]
    assert found["enabled"] == "False"


def test_a_worker_that_enables_itself_hears_that_what_it_starts_is_not_armed(cluster: Cluster) -> None:
    found, done = cluster.job("in_a_worker")
    for kind in ("task", "actor"):
        assert "the actors and tasks that it starts run without patches" in found["strict"][kind]
        assert of(found["warned"][kind], UNARMED) == UNARMED
    assert (done.stdout + done.stderr).count("overlay: Ray: overlay.enable() was called in a worker") == 1
    for job in ("strict", "warned"):
        for kind in ("by hand", "task by hand"):
            assert of(found[job][kind], ARMED) == ARMED, (job, kind)


def test_a_lock_that_workers_cannot_read_fails_what_is_asked_of_them(cluster: Cluster) -> None:
    """A worker that ends at its start would be started again for ever, and the driver would wait."""
    found, done = cluster.job("unreadable")
    assert found["task"][0] == "WorkerCrashedError"
    assert found["actor"][0] == "ActorDiedError"
    reason = "this process is stopped: there is no lock /nowhere/overlay.lock"
    assert reason in found["actor"][1]
    assert reason in done.stdout + done.stderr


def test_a_worker_with_other_code_than_its_driver_says_so_and_a_pinned_one_does_not_work(
    cluster: Cluster,
) -> None:
    """Also one that imports nothing that is patched by what it has, as on a node left out of an upgrade."""
    found, _ = cluster.job("upgraded")
    assert (found["strict"], found["warned"]) == ("ran", True)
    assert (found["alike"], found["pinned"][0]) == ("ran", "ActorDiedError")
    assert "this worker runs different code from the driver of its job: overlay (here " in found["pinned"][1]


def test_a_strict_job_trains_nothing_on_a_cluster_whose_python_has_no_overlay(
    worksite: Venv, tmp_path: Path
) -> None:
    """As where a virtual environment with overlay lies on top of an image's Python, which has Ray."""
    with running(Venv(tmp_path / "bare"), tmp_path) as bare:
        found, done = bare.job("on_others", worksite)
        given = {"OVERLAY": "1", "OVERLAY_STRICT": "1", "OVERLAY_PACKS": "acme"}
        words = [str(HERE / "ray_job.py"), "on_others"]
        submitted = Cluster(worksite, bare.where).submit(words, {"env_vars": given})
    stopped = {"True": "WorkerCrashedError", "out True": "ran"}
    assert found == {"False": "ran", "out False": "ran", **stopped}
    printed = submitted.stdout + submitted.stderr
    assert json.dumps(stopped) in printed, printed[-4000:]
    for said in (done.stdout + done.stderr, printed):
        assert "has no overlay, and the job is strict or pinned: install it there" in said
    (lax, strict) = [line for line in done.stderr.splitlines() if line.startswith("overlay: Ray:")]
    assert "overlay is enabled in the workers of this job, if it is installed where they run, by" in lax
    assert "overlay is enabled in the workers of this job by" in strict


def test_a_job_that_is_submitted_from_python_is_armed(cluster: Cluster) -> None:
    found, done = cluster.job("submits", JOBS=cluster.where["JOBS"])
    assert "'conda' in the runtime_env of this job" in found["refused"]
    for kind in ("task", "actor"):
        assert of(found[kind], ARMED) == ARMED, found["log"]
        assert found[kind]["strict"]
        assert found[kind]["set"] == {"SUBMITTED": "yes"}
    assert found["put back"]
    # Its own log says what it is run with, and that of whoever submits it does not.
    assert found["log"].count("overlay: configuration: ") == 1
    assert "overlay: configuration" not in done.stderr
    assert "overlay: Ray: overlay is enabled in this job, if it is installed where" in done.stderr


def test_a_job_that_is_submitted_by_an_armed_command_is_armed(cluster: Cluster) -> None:
    done = cluster.submit([str(HERE / "ray_job.py"), "asked"], {}, PATIENCE, **ENVIRONMENT)
    (found,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for kind in ("task", "actor"):
        assert of(found[kind], ARMED) == ARMED, kind


def test_what_the_command_of_a_submitted_job_says_holds_for_its_workers(cluster: Cluster) -> None:
    """Whoever submits it has the defaults."""
    run = ["-m", "overlay", "run", "--strict", "--patches", PATCH, str(cluster.venv.python)]
    words = [*run, str(HERE / "ray_job.py"), "asked"]
    done = cluster.submit(words, {}, PATIENCE, OVERLAY="1", OVERLAY_PACKS="acme")
    (found,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for kind in ("task", "actor"):
        assert (of(found[kind], ARMED), found[kind]["strict"]) == (ARMED, True), kind


def test_strict_mode_refuses_before_anything_is_sent(cluster: Cluster, tmp_path: Path, wheel: Path) -> None:
    """The driver of the second job is in an installation without a start-up file."""
    found, _ = cluster.job("refused")
    assert found["conda"].startswith("Ray: 'conda' in the runtime_env of this job")
    assert not found["initialised"]
    assert found["plain"] == ""
    venv = Venv(tmp_path / "venv")
    venv.unpack(wheel)
    (venv.site / "overlay-startup.pth").unlink()
    (venv.site / "acme.pth").write_text(f"{cluster.venv.site}\n")
    found, _ = cluster.job("refused", venv)
    assert "overlay is not enabled at their start, as no overlay-startup.pth" in found["plain"]
    assert "install overlay again from its wheel" in found["plain"]


def test_the_job_of_a_ray_client(cluster: Cluster) -> None:
    found, done = cluster.job("client")
    for kind in ("task", "actor"):
        assert of(found[kind], ARMED) == ARMED
        assert found[kind]["set"] == {"MINE": "1"}
    assert found["plain"]["value"] == int(PATCHED)
    assert found["warned"], "a worker says that the client isn't patched"
    assert found["trust"] == "", "the cluster's own holds for no worker"
    assert "the workers of this job stay patched" in done.stderr
    assert "OVERLAY_PATCHES='acme/*' there, 'none' here" in found["other"]
    assert found["same"] == ""


# -- the call that is stood at, with a Ray that is made up ---------------------------------------------------


def test_ray_folds_the_warning_of_many_ranks_and_keeps_those_of_other_patches() -> None:
    """Ray takes lines for the same that differ in words with digits, and shows the first and the last."""
    logging = pytest.importorskip("ray._private.ray_logging", reason="needs ray")
    printed: list[str] = []
    folding = logging.LogDeduplicator(5, None, None)
    for rank in range(4):
        lines = [
            f"overlay: NOT applied {named} to fakeup 1.2.0: unknown-source: out of range >=1 {place}"
            for named in ("a.b", "a.c")
            for place in [f"[rank={rank},host=node{rank // 2}]"]
        ]
        batch = {"ip": "10.0.0.1", "pid": rank, "lines": lines}
        printed += [line for part in folding.deduplicate(batch) for line in part["lines"]]
    assert [line.split()[3] for line in printed] == ["a.b", "a.c"]


class JobConfig:
    """The part of Ray's that is asked for."""

    def __init__(self, runtime_env: dict[str, Any] | None = None) -> None:
        self.runtime_env = runtime_env

    def set_runtime_env(self, env: dict[str, Any]) -> None:
        self.runtime_env = env


class FakeRay:
    """A Ray that remembers what is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Any] = []
        self.shut_down = 0
        self.strict = False
        self.settled: dict[str, str] = {}
        self.job_log = JobLog(lambda: "configuration: x", lambda: None)
        self.worker: Any = ModuleType("ray._private.worker")
        vars(self.worker).update(
            SCRIPT_MODE=0, WORKER_MODE=1, connect=self._connect(), shutdown=self._shutdown
        )
        config: Any = ModuleType("ray.job_config")
        config.JobConfig = JobConfig
        for module in (self.worker, config):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        for name in {*os.environ, "OVERLAY_SAID", "OVERLAY_LOADED"}:
            if name.startswith("OVERLAY"):
                monkeypatch.setenv(name, "")  # so that it goes afterwards
                monkeypatch.delenv(name)
        for module in (ray_jobs, workers):
            monkeypatch.setattr(module, "here", lambda: self)
        monkeypatch.setattr(startup, "started", True)
        monkeypatch.setattr("overlay.model.rank._drives", False)
        self.jobs = ray_jobs.RayJobs()

    def asked(self) -> dict[str, str]:
        return {}

    def _connect(self) -> Any:
        def connect(node: str, mode: int = 1, job_config: Any = None, namespace: Any = None) -> str:
            self.sent.append(job_config)
            return node

        return connect

    def _shutdown(self) -> None:
        self.shut_down += 1

    def start(self, env: dict[str, Any] | None = None) -> Any:
        """Start a job, and return the `runtime_env` that is sent."""
        assert self.worker.connect("node", mode=0, job_config=JobConfig(env)) == "node"
        return self.sent[-1].runtime_env


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    made = FakeRay(monkeypatch)
    yield made
    made.jobs.leave()


def test_settings_are_copied_and_nothing_else_is_touched(fake: FakeRay) -> None:
    original = fake.worker.connect
    fake.jobs.watch()
    env = {"pip": ["x"], "py_modules": [os], "env_vars": {"A": "1"}}
    config = JobConfig(env)
    fake.worker.connect("node", mode=0, job_config=config)
    assert fake.sent[-1].runtime_env == {**env, "env_vars": {"A": "1", **TOLD}}
    fake.worker.connect("node", 0, config)  # as nobody calls it today
    assert fake.sent[-1].runtime_env == fake.sent[-2].runtime_env
    assert config.runtime_env is env
    assert env == {"pip": ["x"], "py_modules": [os], "env_vars": {"A": "1"}}
    assert fake.start(None) == {"env_vars": TOLD}
    fake.worker.connect("node", mode=1)
    assert fake.sent[-1] is None  # a worker, which has its settings
    ours = fake.worker.connect
    fake.jobs.leave()
    assert fake.worker.connect is original
    ours("node", mode=0, job_config=config)  # somebody has kept it
    assert fake.sent[-1] is config


@pytest.mark.parametrize(
    ("namespace", "mode", "want"), [("mine", 0, None), ("_ray_internal_x", 0, 2), (None, 1, 2)]
)
def test_only_the_driver_of_a_users_job_is_no_rank(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, namespace: str | None, mode: int, want: int | None
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    fake.jobs.watch()
    fake.worker.connect("node", mode=mode, job_config=JobConfig(None), namespace=namespace)
    assert ranks.rank() == want


def test_rays_own_agent_speaks_for_no_job(fake: FakeRay, capsys: pytest.CaptureFixture[str]) -> None:
    """It is the driver of what submitted jobs run in, and writes into a log of Ray's."""
    fake.jobs.watch()
    fake.worker.connect("node", mode=0, job_config=JobConfig(None), namespace="_ray_internal_dashboard")
    assert fake.sent[-1].runtime_env == {"env_vars": {"OVERLAY": "1"}}
    assert capsys.readouterr().err == ""
    assert not {"OVERLAY_SAID", "OVERLAY_LOADED"}.intersection(os.environ)
    assert fake.start(None) == {"env_vars": TOLD}
    assert os.environ["OVERLAY_LOADED"] == loaded()  # for who hands on an environment to workers
    assert "overlay: configuration: " in capsys.readouterr().err


@pytest.mark.parametrize("env", [{"env_vars": ["A=1"]}, "x"])
def test_what_ray_will_not_take_is_left_to_ray(fake: FakeRay, env: Any) -> None:
    fake.jobs.watch()
    assert fake.start(env) is env


@pytest.mark.parametrize("field", ["conda", "container", "image_uri", "py_executable"])
def test_another_python_is_heard_of(
    fake: FakeRay, field: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.jobs.watch()
    # Where `uv run` has not started the driver, that is another Python as well.
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    env = {field: "uv run" if field == "py_executable" else "other"}
    assert fake.start(env) == fake.start(env) == {**env, "env_vars": TOLD}
    said = capsys.readouterr().err
    assert said.count(f"'{field}' in the runtime_env of this job") == 1
    # After that warning nothing says that its workers are patched.
    assert "overlay is enabled in the" not in said
    assert said.count("the variables that enable overlay are in the runtime_env of this job: OVERLAY=1") == 2
    fake.strict = True
    with pytest.raises(WorkersError, match=f"'{field}'.*set OVERLAY=1 and OVERLAY_STRICT=1 in the env_vars"):
        fake.start(env)
    assert len(fake.sent) == 2
    assert fake.shut_down == 1
    # Who says that they are armed is believed. A variable by hand is none that says so.
    with pytest.raises(WorkersError, match=f"'{field}'"):
        fake.start({**env, "env_vars": {"OVERLAY": "1"}})
    fake.asked = lambda: {"OVERLAY_PATCHES": "all"}  # type: ignore[method-assign]
    fake.start(overlay.ray.runtime_env(env))
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    fake.start({"py_executable": "uv run --with x"})


@pytest.mark.parametrize(
    ("python", "way_out"),
    [
        ("/usr/bin/python3", "install it there, or start what runs there with OVERLAY=0"),
        ("/ray/s/runtime_resources/pip/1f/virtualenv/bin/python", "restart Ray, which reuses"),
        ("/ray/s/runtime_resources/working_dir_files/p/.venv/bin/python3", ".* see `uv add`"),
    ],
)
def test_what_helps_where_a_strict_job_finds_no_overlay(
    monkeypatch: pytest.MonkeyPatch, python: str, way_out: str
) -> None:
    monkeypatch.setenv("OVERLAY", "1")
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setitem(sys.modules, "overlay.launch.startup", None)
    with pytest.raises(RuntimeError, match=f"{python} has no overlay, .*{way_out}"):
        ray_jobs._require()


@pytest.mark.parametrize("named", ["", "command", "project", "comment"])
def test_uv_starts_workers_in_environments_that_may_lack_overlay(
    fake: FakeRay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    named: str,
) -> None:  # fmt: skip
    """`uv pip install` puts it into that of the driver alone."""
    needs = ["ray", "megatron-overlay"] if named == "project" else ["ray"]
    text = f"# overlay: uv pip install megatron-overlay\n[project]\ndependencies = {needs}\n"
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    fake.jobs.watch()
    env = {
        "py_executable": f"uv run {'--with /x/overlay ' * (named == 'command')}--env-file overlay.env python"
    }
    fake.start(env)
    said, found = capsys.readouterr().err, named in ("command", "project")
    assert ("overlay is enabled in the workers of this job" in said) == found
    fake.strict = True
    fake.start(env)  # our hook looks for itself
    if not found:
        with pytest.raises(WorkersError, match=r"`uv add` it, or .*, and leave out py_executable"):
            fake.start({**env, "worker_process_setup_hook": "theirs"})


SENT = {"OVERLAY": "1"}


@pytest.mark.parametrize(
    ("submitted", "own", "strict", "want"),
    [
        ({"env_vars": SENT}, {}, True, "hook"),
        ({"env_vars": SENT}, {}, False, "said"),
        ({"env_vars": {}}, {}, True, "hook"),
        ({"env_vars": SENT, "conda": "x"}, {}, True, "hook"),  # its driver runs there as well
        ({"env_vars": SENT}, {"worker_process_setup_hook": "theirs"}, True, "theirs"),
        ({"env_vars": SENT}, {"conda": "x"}, True, "refused"),
        ({"env_vars": {**SENT, "OVERLAY_VOUCHED": "1"}}, {"conda": "x"}, True, "refused"),
        ({"env_vars": SENT}, {"conda": "x"}, False, "warned"),
        ({"env_vars": SENT}, {"conda": "x", "by hand": True}, True, ""),
        ({"env_vars": SENT}, {"conda": "x", "by hand": True}, False, ""),
        ({"env_vars": {}}, {"conda": "x", "by hand": True}, True, ""),
    ],
)
def test_what_a_job_is_submitted_with_vouches_for_no_worker(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    submitted: dict[str, Any], own: dict[str, Any], strict: bool, want: str,
) -> None:  # fmt: skip
    """Where it is submitted, nobody knows the Python of its workers. Only `ray.init` is told by hand."""
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": submitted}))
    fake.strict = strict
    fake.jobs.watch()
    if "by hand" in own:
        fake.asked = lambda: {"OVERLAY_PATCHES": "all"}  # type: ignore[method-assign]
        own = overlay.ray.runtime_env({"conda": own["conda"]})
    merged = {**submitted["env_vars"], **own.get("env_vars", {})}
    env = {**submitted, **own, "env_vars": merged}  # as Ray does
    if want == "refused":
        with pytest.raises(WorkersError, match="conda"):
            fake.start(env)
        return
    sent = fake.start(env)
    hook = sent.get("worker_process_setup_hook")
    assert hook == ("theirs" if want == "theirs" else ray_jobs._require if want == "hook" else None)
    assert {**TOLD, **sent["env_vars"]} == sent["env_vars"]
    printed = capsys.readouterr().err
    sure = "overlay is enabled in the workers of this job" in printed
    assert sure == (want in ("hook", "said", "theirs"))
    # What it says after a warning, which a process logs once.
    assert ("the variables that enable overlay are in the runtime_env" in printed) == (want == "warned")


@pytest.mark.parametrize(("drives", "kept"), [(True, True), (None, False)])
def test_a_job_is_not_submitted_with_what_vouches_for_the_workers_of_its_submitter(
    fake: FakeRay, drives: bool | None, kept: bool
) -> None:
    """Its own driver would say so again by `overlay.ray.runtime_env()`, and Ray takes no variable twice."""
    fake.jobs.watch()
    made = fake.jobs._armed({"env_vars": {**SENT, "OVERLAY_VOUCHED": "1"}}, drives=drives)
    assert ("OVERLAY_VOUCHED" in made["env_vars"]) == kept


def test_who_hands_on_the_environment_of_the_driver_does_not_vouch_for_workers(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NeMo-RL does. The variables that `overlay run` has set are among them."""
    monkeypatch.setenv("OVERLAY", "1")
    monkeypatch.setenv("OVERLAY_STRICT", "1")
    fake.strict = True
    fake.asked = lambda: {"OVERLAY_PATCHES": "all", "OVERLAY_STRICT": "1"}  # type: ignore[method-assign]
    fake.jobs.watch()
    handed = dict(os.environ)
    sent = fake.start({"env_vars": handed})
    assert sent["worker_process_setup_hook"] is ray_jobs._require
    assert sent["env_vars"]["OVERLAY_PATCHES"] == "all"
    with pytest.raises(WorkersError, match="conda"):
        fake.start({"env_vars": handed, "conda": "x"})
    by_hand = {"env_vars": {"OVERLAY": "1"}, "conda": "x"}
    assert fake.jobs._armed(by_hand, drives=None)  # who submits a job has no other way to vouch for it
    vouched = overlay.ray.runtime_env({"conda": "x"})
    assert "worker_process_setup_hook" not in fake.start(vouched)
    # A worker that starts a job has what its own driver vouched for in its environment.
    monkeypatch.setenv("OVERLAY_VOUCHED", vouched["env_vars"]["OVERLAY_VOUCHED"])
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert fake.start({"env_vars": dict(os.environ)})["worker_process_setup_hook"] is ray_jobs._require
    assert "worker_process_setup_hook" not in fake.start(overlay.ray.runtime_env())


def test_workers_get_the_word_of_a_driver_that_says_no(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster may have been started with another."""
    monkeypatch.setenv("OVERLAY", "off")
    fake.jobs.watch()
    assert fake.start({"env_vars": {"A": "1"}}) == {"env_vars": {"A": "1", "OVERLAY": "off"}}


def test_a_job_is_not_submitted_with_defaults(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """`overlay run` in its command may say otherwise. What was asked for holds, whatever the cluster has."""
    fake.jobs.watch()
    for strict in ("0", "1"):
        fake.asked = lambda strict=strict: {"OVERLAY_PATCHES": "all", "OVERLAY_STRICT": strict}  # type: ignore[method-assign,misc]
        want = SENT if strict == "0" else {**SENT, "OVERLAY_STRICT": "1"}
        assert fake.jobs._armed({}, drives=None)["env_vars"] == want
    monkeypatch.setenv("OVERLAY_PATCHES", "all")
    asked = fake.jobs._armed({}, drives=None)["env_vars"]
    assert asked == {**SENT, "OVERLAY_PATCHES": "all", "OVERLAY_STRICT": "1"}


@pytest.mark.parametrize(
    ("more", "strict", "other"),
    [
        ({}, True, ""),
        ({"OVERLAY_PATCHES": " all ", "OVERLAY_STRICT": "yes"}, True, ""),
        ({"OVERLAY_STRICT": "no"}, False, ""),
        ({"OVERLAY_STRICT": "0"}, True, "OVERLAY_STRICT='0' there, '1' here"),
        ({"OVERLAY_PATCHES": "none"}, True, "OVERLAY_PATCHES='none' there, 'all' here"),
        ({"OVERLAY_PACKS": "acme"}, True, "OVERLAY_PACKS='acme' there, '' here"),
    ],
)
def test_a_job_that_was_submitted_with_other_settings_is_heard_of(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], strict: bool, other: str
) -> None:
    """Ray takes no variable twice: its workers get those."""
    submitted = {"env_vars": {**SENT, **more}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": submitted}))
    fake.strict = strict
    fake.asked = lambda: {"OVERLAY_PATCHES": "all", "OVERLAY_STRICT": str(int(strict))}  # type: ignore[method-assign]
    fake.jobs.watch()
    if other:
        with pytest.raises(WorkersError, match=other):
            fake.start(submitted)
    else:
        assert fake.start(submitted)["env_vars"].items() >= submitted["env_vars"].items()
    # Who gives them by hand means them.
    assert fake.start({"env_vars": {**SENT, "OVERLAY_PATCHES": "mine"}})


def test_workers_that_will_not_be_patched_are_not_said_to_be(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in an editable installation, which has no start-up file."""
    monkeypatch.setattr(startup, "started", False)
    monkeypatch.setattr("overlay.launch.doctor.why_unarmed", lambda: "no file starts it")
    fake.jobs.watch()
    assert fake.start() == {"env_vars": TOLD}
    said = capsys.readouterr().err
    assert "workers of this job would run without patches" in said
    assert "overlay is enabled in the" not in said


def test_a_ray_that_is_not_known_is_heard_of(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.worker.connect = lambda *_args, **_kwargs: None
    fake.jobs.watch()
    said = capsys.readouterr().err
    assert said.count("ray._private.worker.connect is not as overlay knows it") == 1
    assert "ray.init(runtime_env=overlay.ray.runtime_env(...))" in said
    fake.jobs.leave()
    monkeypatch.setenv("OVERLAY", "1")  # as in every worker that is armed
    fake.jobs.watch()
    assert capsys.readouterr().err == ""
    fake.jobs.leave()
    monkeypatch.delenv("OVERLAY")
    fake.strict = True
    with pytest.raises(WorkersError, match="not as overlay knows it"):
        fake.jobs.watch()
