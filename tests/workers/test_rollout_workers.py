"""Workers of vLLM: a Ray actor and what it spawns have the patches of verl's own rollout modules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from local_cluster import HERE, PATIENCE, Cluster, environment, running
from worksite import Venv

PATCHES = ["verl.lora-own-memory", "verl.multimodal-caches"]


@pytest.fixture(scope="module")
def cluster(worksite: Venv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("verl", reason="needs verl")
    with running(worksite, tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.mark.parametrize("armed", [True, False])
def test_a_server_of_rollouts_and_its_engine_core_are_patched(cluster: Cluster, armed: bool) -> None:
    settings = {"OVERLAY": "1", "OVERLAY_PATCHES": ",".join(PATCHES), "OVERLAY_STRICT": "1"} if armed else {}
    done = subprocess.run(
        [str(cluster.venv.python), "-W", "ignore", str(HERE / "rollout_workers.py")],
        env=environment(RAY_ADDRESS=cluster.where["RAY_ADDRESS"], **settings),
        capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=HERE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert len({found["driver"], *(found[kind]["process"] for kind in ("server", "engine core"))}) == 3
    assert found["server"]["right"] is found["engine core"]["right"] is armed
    for kind, patch in zip(("engine core", "server"), PATCHES, strict=True):
        assert (patch in found[kind]["applied"]) is armed, kind
