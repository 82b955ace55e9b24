"""Ray: every worker of a job on a real local cluster, and what is merged into its `runtime_env`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from worksite import ARMED, PATCHED, PLAIN, clean_environment

import overlay.ray
from overlay.errors import SelectionError

if TYPE_CHECKING:
    from worksite import Venv

HERE = Path(__file__).parent
#: Seconds for the whole cluster: it is started, asked, given a job, and shut down.
PATIENCE = 150


@pytest.fixture(scope="session")
def found(worksite: Venv, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the driver on a local cluster of its own, of which nothing is left afterwards."""
    pytest.importorskip("ray", reason="needs ray")
    folder = tmp_path_factory.mktemp("ray")
    environ = clean_environment(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled", **ARMED)
    log = folder / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(worksite.python), "-W", "ignore", str(HERE / "ray_driver.py")],
            stdout=subprocess.PIPE, stderr=stream, text=True, env=environ, start_new_session=True, cwd=folder,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            printed = ""
        finally:
            # The cluster is of the driver's session: nothing of it outlives the tests.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    assert lines, log.read_text(errors="replace")[-4000:]
    data: dict[str, Any] = json.loads(lines[-1])
    return data


@pytest.mark.parametrize(
    "kind", ["driver", "task", "actor", "task of an actor", "actor with variables of its own"]
)
def test_workers_are_patched(found: dict[str, Any], kind: str) -> None:
    assert found[kind] == int(PATCHED)


def test_variables_of_an_actor_and_somebody_elses_setup_hook_are_kept(found: dict[str, Any]) -> None:
    assert found["OWN"] == "yes"
    assert found["HOOKED"] == "yes"


def test_a_submitted_job_is_patched(found: dict[str, Any]) -> None:
    assert found["submitted"] == {"job": int(PATCHED), "task of a job": int(PATCHED)}


def test_a_half_patched_worker_is_named(found: dict[str, Any]) -> None:
    assert found["unarmed actor"] == int(PLAIN)
    (sentence,) = found["half-patched"]
    assert sentence.startswith("fakeup.core:Engine.run of acme/fakeup.scale@3 came here pickled by a process")
    assert "not enabled" in sentence


def test_a_worker_that_is_patched_as_well_is_whole(found: dict[str, Any]) -> None:
    assert found["whole"] == [int(PATCHED) + 1, []]


# -- merging -----------------------------------------------------------------------------------------


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in list(os.environ):
        if name.startswith("OVERLAY"):
            monkeypatch.delenv(name)
    return monkeypatch


def test_nothing_else_is_touched(clean: pytest.MonkeyPatch) -> None:
    existing = {"pip": ["x"], "worker_process_setup_hook": "a.b", "env_vars": {"A": "1"}}
    before = json.dumps(existing)
    made = overlay.ray.runtime_env(existing)
    assert made == {**existing, "env_vars": {"A": "1", "OVERLAY": "1"}}
    assert json.dumps(existing) == before
    assert overlay.ray.runtime_env() == {"env_vars": {"OVERLAY": "1"}} == overlay.ray.runtime_env({})
    assert overlay.ray.runtime_env(made) == made


def test_settings_travel_and_what_was_said_is_kept(clean: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean.chdir(tmp_path)
    clean.setenv("OVERLAY_PATCHES", "verl.*")
    clean.setenv("OVERLAY_STRICT", "1")
    clean.setenv("OVERLAY_PACKS", "")
    clean.setenv("OVERLAY_PIN", "overlay.lock")
    wanted = {"OVERLAY": "1", "OVERLAY_PATCHES": "verl.*", "OVERLAY_STRICT": "1"}
    wanted["OVERLAY_PIN"] = str(tmp_path / "overlay.lock")
    assert overlay.ray.runtime_env() == {"env_vars": wanted}
    made = overlay.ray.runtime_env({"env_vars": {"OVERLAY_PATCHES": "none"}})
    assert made == {"env_vars": {**wanted, "OVERLAY_PATCHES": "none"}}
    clean.setenv("OVERLAY_PIN", "sha256:" + "a" * 64)
    assert overlay.ray.runtime_env()["env_vars"]["OVERLAY_PIN"] == "sha256:" + "a" * 64


@pytest.mark.parametrize("existing", ["x", [], {"env_vars": ["A=1"]}, {"env_vars": "A=1"}])
def test_what_is_no_runtime_env_is_refused(clean: pytest.MonkeyPatch, existing: Any) -> None:
    with pytest.raises(SelectionError, match="dictionary"):
        overlay.ray.runtime_env(existing)
