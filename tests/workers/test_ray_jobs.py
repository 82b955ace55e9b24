"""Ray: a driver that calls `overlay.enable()` arms the workers of its jobs, on a real local cluster."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from local_cluster import HERE, PATIENCE, environment, running
from worksite import PATCHED, PLAIN, Venv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from local_cluster import Cluster

PATCH = "acme/fakeup.scale"
COMPANION = "megatron.agreement"
ARMED = {
    "value": int(PATCHED),
    "selection": [PATCH, COMPANION],
    "patches": {PATCH: "applied", COMPANION: "armed"},
}
#: overlay is there and has an empty ledger, or none was asked for.
UNARMED = {"value": int(PLAIN), "selection": [], "patches": {}}


@pytest.fixture(scope="module")
def cluster(worksite: Venv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster that nobody has armed, of which nothing is left afterwards."""
    with running(worksite, tmp_path_factory.mktemp("cluster")) as found:
        yield found


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
    found = cluster.submitted("by_itself", {"env_vars": {"SUBMITTED": "yes", "OVERLAY_PACKS": "acme"}})
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
