"""A local Ray cluster that nobody has armed, and the ways in which people start jobs on one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from worksite import Venv, clean_environment

HERE = Path(__file__).parent
#: Seconds until a job must have run.
PATIENCE = 240


def environment(**more: str) -> dict[str, str]:
    """Return the variables of drivers: none of them arms anything, or leads to another cluster."""
    found = clean_environment(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AUTH_MODE="disabled",
        # Ray's proxy of clients forks under gRPC's threads. gRPC's handlers then start a thread in the child,
        # which segfaults now and then before anything runs there (ray-project/ray#63202). It needs no gRPC.
        GRPC_ENABLE_FORK_SUPPORT="0",
    )
    found.pop("RAY_ADDRESS", None)
    return {**found, **more}


class Cluster:
    """A cluster, and where it is."""

    def __init__(self, venv: Venv, where: dict[str, str]) -> None:
        self.venv = venv
        self.where = where

    def job(
        self, kind: str, venv: Venv | None = None, **environ: str
    ) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
        """Run a driver of `ray_job.py`; return what it printed as JSON, and the process."""
        command = [str((venv or self.venv).python), "-W", "ignore", str(HERE / "ray_job.py"), kind]
        address = {"RAY_ADDRESS": self.where["RAY_ADDRESS"]} if kind != "client" else {}
        done = subprocess.run(
            command,
            env=environment(**{"OVERLAY_PACKS": "acme", **address, "CLIENT": self.where["CLIENT"]} | environ),
            capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=HERE,
        )  # fmt: skip
        return _printed(done), done

    def submitted(self, kind: str, runtime_env: dict[str, Any]) -> dict[str, Any]:
        """Run a driver of `ray_job.py` as a submitted job, and return what it printed as JSON."""
        return _printed(self.submit([str(HERE / "ray_job.py"), kind], runtime_env))

    def submit(
        self, words: Sequence[str], runtime_env: dict[str, Any], patience: float = PATIENCE, **environ: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with some words as a job, by the command line that launch scripts use."""
        command = [str(self.venv.python), "-W", "ignore", "-m", "ray.scripts.scripts", "job", "submit"]
        command += ["--address", self.where["JOBS"], "--runtime-env-json", json.dumps(runtime_env), "--"]
        command += [str(self.venv.python), *words]
        until = time.monotonic() + patience
        while True:
            done = subprocess.run(
                command, env=environment(**environ), capture_output=True, text=True, timeout=patience,
                check=False,
            )  # fmt: skip
            if "No available agent" not in done.stdout + done.stderr or time.monotonic() > until:
                return done
            time.sleep(1)  # the agent starts a while after the cluster


def _printed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    data: dict[str, Any] = json.loads(lines[-1])
    return data


@contextlib.contextmanager
def running(venv: Venv, folder: Path, gpus: int = 0, **environ: str) -> Iterator[Cluster]:
    """Start a cluster for as long as this lasts, of which nothing is left afterwards.

    `venv`: whose Python it runs. `folder`: for its log. `gpus`: that it is told it has. `environ`: variables
    that all its workers have.
    """
    pytest.importorskip("ray", reason="needs ray")
    log = folder / "log.txt"
    ports = [str(free_port()) for _ in range(3)]
    # In a folder of its own, with a short name for Ray's sockets. In the one that all have, Ray writes down
    # which cluster was started last, and a submitted job goes there, whichever it was submitted to.
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as own,
        log.open("wb") as stream,
    ):
        process = subprocess.Popen(
            [str(venv.python), "-W", "ignore", str(HERE / "ray_job.py"), "cluster", str(gpus), *ports],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True,
            env=environment(**environ, RAY_TMPDIR=own), start_new_session=True, cwd=HERE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            line = next((line for line in process.stdout if line.startswith("{")), "")
            assert line, log.read_text(errors="replace")[-4000:]
            yield Cluster(venv, json.loads(line))
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
        finally:
            # It is of a session of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()
            process.stdout.close()
