"""Started armed in the worksite: runs every kind of Ray worker on one local cluster, and prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import ray
from ray.cluster_utils import Cluster

import overlay.ray
from overlay.compat.ranks.ports import free_port

SLEEP = 1.0
#: Seconds until the job must have run.
PATIENCE = 60


def probe() -> int:
    """Use the fake upstream, which is 100 times larger where it is patched."""
    import fakeup.core

    return int(fakeup.core.scale(1))


def setting(name: str) -> str | None:
    return os.environ.get(name)


def hook() -> None:
    """Stand for the setup hook of somebody else, who has its only slot."""
    os.environ["HOOKED"] = "yes"


class Probe:
    def probe(self) -> int:
        return probe()

    def nested(self) -> int:
        return int(ray.get(ray.remote(probe).remote()))

    def setting(self, name: str) -> str | None:
        return setting(name)

    def half_patched(self) -> list[str]:
        import overlay

        return list(overlay.status().half_patched)


def workers() -> dict[str, Any]:
    """Ask each kind of worker of this job."""
    task, actor = ray.remote(probe), ray.remote(Probe)
    found: dict[str, Any] = {"driver": probe(), "task": ray.get(task.remote())}
    plain = actor.remote()
    found["actor"] = ray.get(plain.probe.remote())
    found["task of an actor"] = ray.get(plain.nested.remote())
    # As slime does: each actor has variables of its own.
    own = actor.options(runtime_env={"env_vars": {"OWN": "yes"}}).remote()
    found["actor with variables of its own"] = ray.get(own.probe.remote())
    found["OWN"] = ray.get(own.setting.remote("OWN"))
    found["HOOKED"] = ray.get(plain.setting.remote("HOOKED"))
    # The driver is patched, and this worker is not: what Ray pickled of the patched class arrives in it.
    import fakeup.core

    class Derived(fakeup.core.Engine, Probe):
        pass

    alone = ray.remote(Derived).options(runtime_env={"env_vars": {"OVERLAY": "0"}}).remote()
    found["unarmed actor"] = ray.get(alone.probe.remote())
    found["half-patched"] = ray.get(alone.half_patched.remote())
    whole = ray.remote(Derived).remote()
    found["whole"] = [ray.get(whole.run.remote(1)), ray.get(whole.half_patched.remote())]
    return found


def submitted(address: str) -> dict[str, Any]:
    """Run this file as a job, by the command line that launch scripts use."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", address]
    command += ["--runtime-env-json", json.dumps(overlay.ray.runtime_env())]
    command += ["--", sys.executable, os.path.abspath(__file__), "inside"]  # noqa: PTH100
    # What starts the job is not armed: only the runtime_env says that the job is.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    until = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if lines:
            found: dict[str, Any] = json.loads(lines[-1])
            return found
        if "No available agent" not in done.stdout + done.stderr or time.monotonic() > until:
            return {"failed": done.stdout + done.stderr}
        time.sleep(SLEEP)  # the agent starts a while after the cluster


def main() -> None:
    if sys.argv[1:] == ["inside"]:
        ray.init()
        found = {"job": probe(), "task of a job": ray.get(ray.remote(probe).remote())}
    else:
        env = overlay.ray.runtime_env({"worker_process_setup_hook": hook, "env_vars": {"FIRST": "1"}})
        # Ports of its own: there may be another cluster on this machine.
        ports = {"dashboard_port": free_port(), "dashboard_agent_listen_port": free_port()}
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": True, **ports}
        )
        try:
            ray.init(address=cluster.address, runtime_env=env, logging_level="error")
            found = workers()
            found["submitted"] = submitted(f"http://127.0.0.1:{ports['dashboard_port']}")
        finally:
            ray.shutdown()
            cluster.shutdown()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
