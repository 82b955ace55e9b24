"""What `overlay.ray` merges into a `runtime_env`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import overlay.ray
from overlay.errors import SelectionError


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


def test_what_enable_was_given_is_sent(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("OVERLAY_PATCHES", "none")
    overlay.enable(["megatron.recompute", "-megatron.agreement"], strict=True)
    try:
        sent = overlay.ray.runtime_env({"env_vars": {"A": "1"}})["env_vars"]
    finally:
        overlay.disable()
    patches = {"OVERLAY_PATCHES": "megatron.recompute,-megatron.agreement"}
    vouched = {"OVERLAY_VOUCHED": str(os.getpid())}
    assert sent == {"OVERLAY": "1", **patches, "OVERLAY_STRICT": "1", "A": "1", **vouched}
