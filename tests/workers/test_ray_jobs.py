"""Ray: a driver that calls `overlay.enable()` arms the workers of its jobs, on a real local cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from worksite import PATCHED, PLAIN, Venv, clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
#: Seconds until a job must have run.
PATIENCE = 90
PATCH = "acme/fakeup.scale"
COMPANION = "megatron.agreement"
ARMED = {
    "value": int(PATCHED),
    "selection": [PATCH, COMPANION],
    "patches": {PATCH: "applied", COMPANION: "armed"},
}
#: overlay is there and has an empty ledger, or none was asked for.
UNARMED = {"value": int(PLAIN), "selection": [], "patches": {}}


def environment(**more: str) -> dict[str, str]:
    """Return the variables of drivers: none of them arms anything, but they have the pack."""
    found = clean_environment(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", **more)
    return {name: value for name, value in found.items() if name != "RAY_ADDRESS" or name in more}


class Cluster:
    """A local cluster that nobody has armed."""

    def __init__(self, venv: Venv, where: dict[str, str]) -> None:
        self.venv = venv
        self.where = where

    def job(
        self, kind: str, venv: Venv | None = None, **environ: str
    ) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        """Run a driver; return what it printed as JSON, and the process."""
        python = (venv or self.venv).python
        command = [str(python), "-W", "ignore", str(HERE / "ray_job.py"), kind]
        address = {"RAY_ADDRESS": self.where["RAY_ADDRESS"]} if kind != "client" else {}
        env = environment(OVERLAY_PACKS="acme", **address, CLIENT=self.where["CLIENT"], **environ)
        return self._run(command, env)

    def submit(self, kind: str, runtime_env: dict[str, Any]) -> dict[str, Any]:
        """Run a driver as a submitted job, by the command line that launch scripts use."""
        command = [str(self.venv.python), "-W", "ignore", "-m", "ray.scripts.scripts", "job", "submit"]
        command += ["--address", self.where["JOBS"], "--runtime-env-json", json.dumps(runtime_env), "--"]
        command += [str(self.venv.python), str(HERE / "ray_job.py"), kind]
        until = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(
                command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            if "No available agent" not in done.stdout + done.stderr or time.monotonic() > until:
                return _printed(done)
            time.sleep(1)  # the agent starts a while after the cluster

    @staticmethod
    def _run(
        command: list[str], env: dict[str, str]
    ) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=HERE
        )
        return _printed(done), done


def _printed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    data: dict[str, Any] = json.loads(lines[-1])
    return data


@pytest.fixture(scope="module")
def cluster(worksite: Venv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster, of which nothing is left afterwards."""
    pytest.importorskip("ray", reason="needs ray")
    log = tmp_path_factory.mktemp("cluster") / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(worksite.python), "-W", "ignore", str(HERE / "ray_job.py"), "cluster"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True, env=environment(),
            start_new_session=True, cwd=HERE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            line = next((line for line in process.stdout if line.startswith("{")), "")
            assert line, log.read_text(errors="replace")[-4000:]
            yield Cluster(worksite, json.loads(line))
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


def of(found: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in like}


def test_the_workers_of_a_driver_that_is_enabled_are_too(cluster: Cluster) -> None:
    found, done = cluster.job("first")
    for kind in ("task", "actor", "again"):
        assert of(found[kind], ARMED) == ARMED, kind
        assert found[kind]["strict"]
    # What the user gave is there, and what he gave it in is as it was.
    assert found["task"]["set"] == found["actor"]["set"] == {"MINE": "1", "HOOKED": "yes"}
    assert found["given"] == {"env_vars": {"MINE": "1"}, "worker_process_setup_hook": "hook"}
    assert found["put back"]
    said = [line for line in done.stderr.splitlines() if line.startswith("overlay: Ray:")]
    wanted = "OVERLAY=1 OVERLAY_PACKS=acme OVERLAY_PATCHES=acme/* OVERLAY_STRICT=1"
    assert said == [f"overlay: Ray: the workers of this job are armed by its runtime_env: {wanted}"] * 2


def test_a_driver_that_never_calls_init_and_a_hook_that_makes_the_environment(cluster: Cluster) -> None:
    found, _ = cluster.job("by_itself", RAY_RUNTIME_ENV_HOOK="ray_job.env_hook", PYTHONPATH=str(HERE))
    for kind in ("task", "actor"):
        assert found[kind]["value"] == int(PATCHED)
        assert found[kind]["patches"][PATCH] == "applied"
        assert not found[kind]["strict"]
        assert found[kind]["set"] == {"HOOKED": "by the variable"}


def test_a_submitted_job_that_enables_itself(cluster: Cluster) -> None:
    found = cluster.submit("by_itself", {"env_vars": {"SUBMITTED": "yes", "OVERLAY_PACKS": "acme"}})
    for kind in ("task", "actor"):
        assert found[kind]["value"] == int(PATCHED)
        assert found[kind]["set"] == {"SUBMITTED": "yes"}


def test_who_opts_out_is_left_alone(cluster: Cluster) -> None:
    found, done = cluster.job("opted_out")
    assert of(found["by the job"], UNARMED) == UNARMED
    assert found["by the job"]["set"] == {"MINE": "1"}
    assert of(found["by the driver"], UNARMED) == UNARMED
    said = [line for line in done.stderr.splitlines() if line.startswith("overlay: Ray:")]
    begin = "overlay: Ray: the workers of this job are not enabled, as OVERLAY="
    assert said == [f"{begin}0 in its runtime_env says", f"{begin}off in the environment of its driver says"]


def test_a_job_that_is_there_already_is_heard_of_once(cluster: Cluster) -> None:
    found, done = cluster.job("late")
    assert "before overlay.enable() was called" in found["strict"]
    assert "ray.init(runtime_env=overlay.ray.runtime_env(...))" in found["strict"]
    assert not found["enabled"]
    assert of(found["job"]["actor"], UNARMED) == UNARMED
    before, after = done.stderr.split("armed by hand")
    assert before.count("its workers run without patches") == 1
    assert "overlay: Ray:" not in after


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
    assert "new processes are not armed" in found["plain"]
    assert "install overlay again from its wheel" in found["plain"]


def test_the_job_of_a_ray_client(cluster: Cluster) -> None:
    found, _ = cluster.job("client")
    for kind in ("task", "actor"):
        assert of(found[kind], ARMED) == ARMED
        assert found[kind]["set"] == {"MINE": "1"}


def test_strict_mode_leaves_no_cluster_behind(worksite: Venv) -> None:
    """Without an address, `ray.init` starts a cluster before it has the job's settings."""
    pytest.importorskip("ray", reason="needs ray")
    done = subprocess.run(
        [str(worksite.python), "-W", "ignore", "-c", LEFT], env=environment(OVERLAY_PACKS="acme"),
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=HERE,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


LEFT = """
import json, sys
import psutil, ray
import overlay
overlay.enable(strict=True)
try:
    ray.init("local", num_cpus=1, include_dashboard=False, runtime_env={"image_uri": "x"})
except overlay.WorkersError:
    left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=20)[1]
    print(json.dumps([one.name() for one in left]))
"""
