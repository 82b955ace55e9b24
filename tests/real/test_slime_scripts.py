"""What docs/running.md says of slime's own scripts: run with everything that they start stood in for."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

BASH = str(shutil.which("bash"))
#: What the scripts call, besides `ray`. None of it is to do anything.
SILENT = ("hf", "hostname", "ip", "mkdir", "nvidia-smi", "pip", "pkill", "python3", "rm", "sleep", "ssh")
#: What they really need.
REAL = ("dirname", "bash", "cat", "grep", "wc", "awk", "head", "tr", "seq")

RAY = """#!/bin/bash
if [ "$1" = start ]; then printf '%s' "$OVERLAY" > "$STARTED"; fi
for word in "$@"; do
  case "$word" in --runtime-env-json=*) printf '%s' "${word#--runtime-env-json=}" > "$SUBMITTED";; esac
done
"""


@pytest.mark.parametrize("revision", ["v0.2.0", "v0.2.4", "v0.3.0", "v0.3.1"])
def test_every_script_of_slime_starts_ray_armed_and_hands_it_variables(
    revision: str, tmp_path: Path, slime_repository: Path
) -> None:
    """So `overlay run bash SCRIPT` is enough, and where that cannot be, a line in its JSON is."""
    command = ["git", "-C", str(slime_repository), "archive", revision, "scripts"]
    archive = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(tmp_path, filter="data")
    scripts = tmp_path / "scripts"
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in SILENT:
        (programs / name).write_text("#!/bin/bash\n")
        (programs / name).chmod(0o755)
    (programs / "ray").write_text(RAY)
    (programs / "ray").chmod(0o755)
    for name in REAL:
        (programs / name).symlink_to(str(shutil.which(name)))
    ran = starts = 0
    for script in sorted(scripts.glob("run-*.sh")):
        assert "/pkill" not in script.read_text()
        job = submitted(script, programs)
        if job is None:
            continue  # it submits no job, or not here
        if "ray start" in script.read_text():  # else it is for a cluster that runs already
            assert (tmp_path / "started").read_text() == "1", script.name
            starts += 1
        assert job["env_vars"], script.name
        assert all(isinstance(value, str) for value in job["env_vars"].values()), script.name
        assert not [name for name in job["env_vars"] if name.startswith("OVERLAY")], script.name
        ran += 1
    assert ran >= starts >= 10


def submitted(script: Path, programs: Path) -> dict[str, dict[str, str]] | None:
    """Return the runtime environment with which a script submits its job."""
    told = programs.parent / "submitted"
    started = programs.parent / "started"
    told.unlink(missing_ok=True)
    started.unlink(missing_ok=True)
    environ = {"PATH": str(programs), "SUBMITTED": str(told), "STARTED": str(started), "OVERLAY": "1"}
    environ["HOME"] = str(programs.parent)
    given = {"MASTER_ADDR": "127.0.0.1", "MLP_WORKER_0_HOST": "127.0.0.1", "BASE_DIR": "/nowhere"}
    subprocess.run(
        [BASH, str(script)],
        cwd=script.parent.parent,
        env={**environ, **given},
        capture_output=True,
        timeout=30,
        check=False,
    )
    return json.loads(told.read_text()) if told.exists() and told.read_text() else None
