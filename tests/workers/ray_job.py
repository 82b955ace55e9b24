"""Started in the worksite: drivers of Ray jobs that call `overlay.enable()` themselves. Prints JSON.

The first argument names what the driver does. `cluster N` starts a local cluster with N GPUs, which is not
armed, prints where it is, and ends when its standard input does; the others are jobs on it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

#: What a worker has on a node that was left out of an upgrade.
OTHER = {"env_vars": {"OVERLAY_LOADED": "overlay 0123456789ab; pack gone 0123456789ab"}}


def probe() -> dict[str, Any]:
    """Use the fake upstream, which is 100 times larger where it is patched, and say what is enabled here."""
    import overlay
    from overlay.runtime import job_log

    job_log.QUIET = 0.5  # seconds, to be heard as long as the job runs
    import fakeup.core

    value, status = int(fakeup.core.scale(1)), overlay.status()
    return {
        "value": value,
        "patches": {patch.patch: patch.state for patch in status.patches},
        "selection": list(status.selection),
        "strict": status.strict,
        "set": {name: os.environ[name] for name in ("MINE", "HOOKED", "SUBMITTED") if name in os.environ},
    }


def hook() -> None:
    """Stand for the setup hook of somebody else, who has its only slot."""
    os.environ["HOOKED"] = "yes"


class Probe:
    def probe(self) -> dict[str, Any]:
        return probe()

    def nested(self) -> dict[str, Any]:
        import ray

        found: dict[str, Any] = ray.get(ray.remote(probe).remote())
        return found

    def half_patched(self) -> list[str]:
        import overlay

        return list(overlay.status().half_patched)


def asked() -> dict[str, Any]:
    """Ask a task and an actor of this job."""
    import ray

    task = ray.get(ray.remote(probe).remote())
    # As builders of groups do: each actor has variables of its own.
    actor = ray.remote(Probe).options(runtime_env={"env_vars": {"OWN": "yes"}}).remote()
    return {"task": task, "actor": ray.get(actor.probe.remote())}


def said(make: Any) -> str:
    """Return the error of overlay that a call raises, empty if there is none."""
    import overlay

    try:
        make()
    except overlay.WorkersError as error:
        return str(error)
    return ""


def hears(text: str) -> threading.Event:
    """Return what is set once this driver has printed a line of a worker that has a text in it."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as printed

    heard = threading.Event()

    def hear(batch: dict[str, Any]) -> None:
        if any(text in line for line in batch["lines"]):
            heard.set()

    printed.add_handler("heard", hear)  # after Ray's own, which prints
    return heard


def first() -> dict[str, Any]:
    """Enable, and start jobs: with what a user gives, again as scripts do, with what its workers have."""
    import overlay

    overlay.enable("acme/*", strict=True)
    import ray
    from ray._private import worker

    env = {"env_vars": {"MINE": "1"}, "worker_process_setup_hook": hook}
    ray.init(runtime_env=env)
    heard = hears("overlay: this process")
    found = {**asked(), "given": {**env, "worker_process_setup_hook": "hook"}}
    heard.wait(60)
    ray.shutdown()
    ray.init()
    found["again"] = ray.get(ray.remote(probe).remote())
    handed = ray.get(ray.remote(lambda: dict(ray.get_runtime_context().runtime_env)).remote())
    ray.shutdown()
    ray.init(runtime_env=handed)  # as an engine of vLLM in an actor
    found["handed on"] = ray.get(ray.remote(probe).remote())
    own = worker.connect
    overlay.disable()
    found["put back"] = worker.connect is own.__wrapped__
    return found


def by_hand() -> dict[str, Any]:
    """Hand over what `overlay.ray` makes of what a user gives, and send a patched class to workers."""
    import ray

    import overlay.ray

    env = {"env_vars": {"MINE": "1"}, "worker_process_setup_hook": hook}
    ray.init(runtime_env=overlay.ray.runtime_env(env))
    import fakeup.core

    class Derived(fakeup.core.Engine, Probe):
        pass

    whole = ray.remote(Derived).remote()
    unarmed = ray.remote(Derived).options(runtime_env={"env_vars": {"OVERLAY": "0"}}).remote()
    return {
        "driver": probe(),
        **asked(),
        "task of an actor": ray.get(whole.nested.remote()),
        "whole": [ray.get(whole.run.remote(1)), ray.get(whole.half_patched.remote())],
        "unarmed": ray.get(unarmed.probe.remote()),
        "half-patched": ray.get(unarmed.half_patched.remote()),
    }


def by_itself() -> dict[str, Any]:
    """Enable once Ray is imported, and leave `ray.init` to Ray, which calls it when it is needed."""
    import ray  # noqa: F401

    import overlay

    overlay.enable()
    return asked()


def opted_out() -> dict[str, Any]:
    """Say that workers are not to be armed."""
    import overlay

    overlay.enable(strict=True)
    import ray

    ray.init(runtime_env={"env_vars": {"OVERLAY": "0", "MINE": "1"}})
    found = {"by the job": ray.get(ray.remote(probe).remote())}
    ray.shutdown()
    os.environ["OVERLAY"] = "off"
    ray.init()
    found["by the driver"] = ray.get(ray.remote(probe).remote())
    return found


def late() -> dict[str, Any]:
    """Enable when the job is there already: not armed, and armed."""
    import ray

    import overlay

    ray.init()
    os.environ["OVERLAY"] = "1"  # which workers do not have
    found: dict[str, Any] = {"strict": said(lambda: overlay.enable(strict=True))}
    found["enabled"] = overlay.status().enabled
    del os.environ["OVERLAY"]
    overlay.enable()
    overlay.enable()
    found["job"] = asked()
    overlay.disable()
    ray.shutdown()
    import overlay.ray

    ray.init(runtime_env=overlay.ray.runtime_env())
    sys.stderr.write("armed by hand\n")
    overlay.enable(strict=True)
    return found


def in_a_worker() -> dict[str, Any]:
    """Enable in a task, as in the main task of verl, and start others from there."""
    import ray

    def main(*, strict: bool) -> dict[str, Any]:
        import overlay.ray

        overlay.enable("acme/*", strict=strict)
        armed = {"runtime_env": overlay.ray.runtime_env()}
        found = {"by hand": ray.get(ray.remote(Probe).options(**armed).remote().probe.remote())}
        found["task by hand"] = ray.get(ray.remote(**armed)(probe).remote())
        if strict:
            return {**found, "task": said(ray.remote(probe).remote), "actor": said(ray.remote(Probe).remote)}
        actor = ray.remote(Probe).remote()
        return {**found, "task": ray.get(ray.remote(probe).remote()), "actor": ray.get(actor.probe.remote())}

    ray.init(runtime_env={"env_vars": {"OVERLAY_PACKS": "acme"}})
    heard = hears("run without patches")
    started: Any = ray.remote(max_calls=1)(main)
    found = {"strict": ray.get(started.remote(strict=True)), "warned": ray.get(started.remote(strict=False))}
    heard.wait(60)
    return found


def otherwise() -> dict[str, Any]:
    """Enable once a job is there whose workers have other patches than this process."""
    import ray

    import overlay

    overlay.enable("none")
    ray.init()
    overlay.disable()
    found = {"others": said(lambda: overlay.enable("acme/*", strict=True))}
    found["enabled"] = str(overlay.status().enabled)
    overlay.enable("none", strict=True)  # as it was
    return found


def unreadable() -> dict[str, Any]:
    """Pin workers to a lock that they cannot read, and ask them all the same."""
    import ray

    import overlay

    overlay.enable("acme/*")
    ray.init(runtime_env={"env_vars": {"OVERLAY_PIN": "/nowhere/overlay.lock"}})
    found: dict[str, Any] = {}
    for kind, ask in (
        ("task", lambda: ray.remote(max_retries=0)(probe).remote()),
        ("actor", ray.remote(Probe).remote().probe.remote),
    ):
        try:
            found[kind] = ray.get(ask(), timeout=120)
        except ray.exceptions.RayError as error:  # noqa: PERF203 -- each of them has its own
            found[kind] = [type(error).__name__, str(error)]
    time.sleep(3)  # until what Ray says of it has come here
    return found


def upgraded() -> dict[str, Any]:
    """Ask a task that hears of a driver with other code than its own, in a strict job and in a pinned one."""
    import ray

    import overlay

    overlay.enable("acme/*", strict=True)
    ray.init()
    heard = hears("overlay: Ray: this worker runs different code")
    other = ray.remote(lambda: "ran").options(max_retries=0, runtime_env=OTHER)
    found = {"strict": ray.get(other.remote(), timeout=120), "warned": heard.wait(60)}
    ray.shutdown()
    overlay.disable()
    with tempfile.TemporaryDirectory() as folder:
        words = ["lock", "--patches", "acme/*", "--file", f"{folder}/overlay.lock"]
        subprocess.run([sys.executable, "-m", "overlay", *words], check=True, stdout=subprocess.DEVNULL)
        lock = json.loads(Path(folder, "overlay.lock").read_text(encoding="utf-8"))
    os.environ["OVERLAY_PIN"] = f"sha256:{lock['digest']}"
    overlay.enable("acme/*")
    ray.init()
    found["alike"] = ray.get(ray.remote(lambda: "ran").remote(), timeout=120)
    try:
        ray.get(ray.remote(Probe).options(runtime_env=OTHER).remote().probe.remote(), timeout=120)
    except ray.exceptions.RayError as error:
        found["pinned"] = [type(error).__name__, str(error)]
    return found


def on_others() -> dict[str, Any]:
    """Ask a task that needs no overlay, of a cluster whose Python may have none."""
    import ray

    import overlay

    found = {}
    for strict in (True,) if overlay.status().enabled else (False, True):  # a submitted job is enabled
        if not overlay.status().enabled:
            overlay.enable("acme/*", strict=strict)
        ray.init()
        try:
            found[str(strict)] = ray.get(ray.remote(max_retries=0)(lambda: "ran").remote(), timeout=120)
        except ray.exceptions.RayError as error:
            found[str(strict)] = type(error).__name__
        out = {"env_vars": {"OVERLAY": "0"}}
        found[f"out {strict}"] = ray.get(ray.remote(runtime_env=out)(lambda: "ran").remote(), timeout=120)
        ray.shutdown()
        overlay.disable()
    return found


def submits() -> dict[str, Any]:
    """Submit a job from Python, and return what it printed."""
    import overlay

    overlay.enable("acme/*", strict=True)
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(os.environ["JOBS"])
    refused = said(lambda: client.submit_job(entrypoint="true", runtime_env={"conda": "other"}))
    job = client.submit_job(
        entrypoint=f"{sys.executable} -W ignore {os.path.abspath(__file__)} asked",  # noqa: PTH100
        runtime_env={"env_vars": {"SUBMITTED": "yes"}},
    )
    until = time.monotonic() + 120
    while not client.get_job_status(job).is_terminal() and time.monotonic() < until:
        time.sleep(0.5)
    printed = client.get_job_logs(job)
    found = [line for line in printed.splitlines() if line.startswith("{")]
    own = JobSubmissionClient.submit_job
    overlay.disable()
    back = JobSubmissionClient.submit_job is own.__wrapped__
    return {"refused": refused, "log": printed, "put back": back, **json.loads((found or ["{}"])[-1])}


def refused() -> dict[str, Any]:
    """Start jobs whose workers have another Python, and one for which this Python starts nothing armed."""
    import overlay

    overlay.enable(strict=True)
    import ray

    found: dict[str, Any] = {"conda": said(lambda: ray.init(runtime_env={"conda": "other"}))}
    found["initialised"] = ray.is_initialized()
    found["plain"] = said(ray.init)
    return found


def client() -> dict[str, Any]:
    """Be a Ray client, of the address in the environment: strict, and then one that isn't patched."""
    import overlay

    overlay.enable("acme/*", strict=True)
    import ray
    from ray.util.client.logsclient import LogstreamClient

    ray.init(os.environ["CLIENT"], runtime_env={"env_vars": {"MINE": "1"}})
    found = asked()
    found["trust"] = ray.get(ray.remote(lambda: os.environ.get("OVERLAY_TRUST")).remote())
    overlay.disable()
    found["other"] = said(lambda: overlay.enable("none", strict=True))
    found["same"] = said(lambda: overlay.enable("acme/*", strict=True))
    ray.shutdown()
    overlay.disable()
    heard = threading.Event()

    def hear(_self: object, *, level: int, msg: str) -> None:
        if level and "the driver of its job does not seem to be" in msg:
            heard.set()

    LogstreamClient.stdstream = hear
    ray.init(os.environ["CLIENT"], runtime_env={"env_vars": {"OVERLAY": "1", "OVERLAY_PACKS": "acme"}})
    return {**found, "plain": ray.get(ray.remote(probe).remote()), "warned": heard.wait(60)}


def cluster() -> None:
    """Start the cluster, with ports of its own: there may be another one on this machine."""
    from ray.cluster_utils import Cluster

    names = ("dashboard_port", "dashboard_agent_listen_port", "ray_client_server_port")
    ports = dict(zip(names, map(int, sys.argv[3:]), strict=True))
    sizes = {"num_cpus": 8, "num_gpus": int(sys.argv[2])}
    made = Cluster(initialize_head=True, head_node_args={"include_dashboard": True, **sizes, **ports})
    where = {
        "RAY_ADDRESS": made.address,
        "JOBS": f"http://127.0.0.1:{ports['dashboard_port']}",
        "CLIENT": f"ray://127.0.0.1:{ports['ray_client_server_port']}",
    }
    sys.stdout.write("\n" + json.dumps(where) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    made.shutdown()


def main() -> None:
    if sys.argv[1] == "cluster":
        cluster()
        return
    found = globals()[sys.argv[1]]()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
