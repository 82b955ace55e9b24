"""verl's own commands, `python -m verl.trainer.X`, as people start them, with overlay and without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from checks import UPSTREAMS
from overlay.patches.verl.sft_balance.contract.judge import imbalance

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.real]

SECONDS = 300
SITE = "import launched_verl"


def launched(folder: Path, place: Path, *words: str, patch: str = "") -> dict[str, Any]:
    """Run a command of verl's with a release first on the path, and return what came of it."""
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text("import launched_verl\n")
    out = place / "out.json"
    out.unlink(missing_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OVERLAY", "RAY"))}
    path = os.pathsep.join(map(str, (place, folder, UPSTREAMS)))
    environ = {**kept, "PYTHONPATH": path, "LAUNCHED_OUT": str(out), "PYTHONWARNINGS": "ignore"}
    environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"}
    if patch:
        environ |= {"OVERLAY": "1", "OVERLAY_PATCHES": patch, "OVERLAY_STRICT": "1"}
    done = subprocess.run(
        [sys.executable, *words], env=environ, cwd=place, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["path"].startswith(str(folder))
    assert found["module"] == "__main__"
    return found


@pytest.mark.parametrize("how", ["module", "script"])
def test_main_ppo_sync_trains_on_after_an_epoch(
    release: Callable[[str], Path], tmp_path: Path, how: str
) -> None:
    folder = release("verl==0.8.0")
    script = str(folder / "verl/trainer/main_ppo_sync.py")
    words = ["-m", "verl.trainer.main_ppo_sync"] if how == "module" else [script]

    def run(name: str, **options: str) -> dict[str, Any]:
        place = tmp_path / name
        settings = [f"trainer.default_local_dir={place / 'saved'}", "trainer.n_gpus_per_node=1"]
        settings += ["trainer.resume_mode=auto", "+ray_kwargs.ray_init.include_dashboard=False"]
        return launched(folder, place, *words, *settings, **options)

    plain = run("plain")
    assert (plain["seen"], len(plain["left"])) == ([], 4)
    patched = run("patched", patch="verl.resume-epoch-boundary")
    assert patched["worker"]
    assert patched["seen"] == patched["left"] == plain["left"]
