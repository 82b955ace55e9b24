"""The line in docs/running.md, on slime's own scripts: run with everything that they start stood in for."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

BASH = str(shutil.which("bash"))
PAGE = (Path(__file__).parents[2] / "docs/running.md").read_text()
#: What the scripts call, besides `ray`. None of it is to do anything.
SILENT = ("hf", "hostname", "ip", "mkdir", "nvidia-smi", "pip", "pkill", "python3", "rm", "sleep", "ssh")
#: What they really need.
REAL = ("dirname", "bash", "cat", "grep", "wc", "awk", "head", "tr", "seq")

RAY = """#!/bin/bash
for word in "$@"; do
  case "$word" in --runtime-env-json=*) printf '%s' "${word#--runtime-env-json=}" > "$SUBMITTED";; esac
done
"""


def line() -> str:
    found = re.findall(r"^(sed .*) \S+$", PAGE, re.MULTILINE)
    assert len(found) == 1
    return str(found[0])


@pytest.mark.parametrize("revision", ["v0.2.0", "v0.2.4", "v0.3.0", "v0.3.1"])
def test_every_script_of_slime_arms_its_job(revision: str, tmp_path: Path, slime_repository: Path) -> None:
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
    ran = 0
    for script in sorted(scripts.glob("run-*.sh")):
        assert "/pkill" not in script.read_text()
        before = submitted(script, programs)
        if before is None:
            continue  # it submits no job, or not here
        subprocess.run([BASH, "-c", f"{line()} {script}"], check=True, timeout=20)
        after = submitted(script, programs)
        assert after is not None, script.name
        assert after.pop("env_vars") == {"OVERLAY": "1", **before.pop("env_vars")}, script.name
        assert after == before
        ran += 1
    assert ran >= 10


def submitted(script: Path, programs: Path) -> dict[str, dict[str, str]] | None:
    """Return the runtime environment with which a script submits its job."""
    told = programs.parent / "submitted"
    told.unlink(missing_ok=True)
    environ = {"PATH": str(programs), "SUBMITTED": str(told), "HOME": str(programs.parent)}
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
