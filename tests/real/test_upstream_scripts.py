"""slime's own launch scripts hand what arms a job to the Ray that they start.

They are run with a stand-in for every program that they start.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sources import git_sources

pytestmark = pytest.mark.real

BASH = str(shutil.which("bash"))
#: What the scripts call. None of it is to do anything.
SILENT = (
    "cp", "curl", "git", "hf", "hostname", "huggingface-cli", "ip", "kill", "mkdir", "mv", "nohup", "nproc",
    "nvidia-smi", "pip", "pip3", "pkill", "python3", "rm", "scontrol", "sleep", "ssh", "sudo", "tee", "touch",
    "wget",
)  # fmt: skip
#: What they really need.
REAL = (
    "awk", "basename", "bash", "cat", "cut", "date", "dirname", "env", "grep", "head", "sed", "seq", "tail",
    "tr", "wc",
)  # fmt: skip
#: What starts Ray for slime, and submits the job with its variables.
RAY = """#!/bin/bash
if [ "$1" = start ]; then printf '%s' "$OVERLAY" > "$TOLD.started"; fi
for word in "$@"; do
  case "$word" in --runtime-env-json=*) printf '%s' "${word#--runtime-env-json=}" > "$TOLD";; esac
done
"""


def run(script: Path, told: Path, programs: Path) -> str:
    """Run a script with some programs, and return what is told meanwhile, nothing if it does not end."""
    assert "/pkill" not in script.read_text()
    told.write_text("")
    armed = {"OVERLAY": "1", "MASTER_ADDR": "127.0.0.1", "MLP_WORKER_0_HOST": "127.0.0.1", "BASE_DIR": "/x"}
    environ = {"PATH": str(programs), "TOLD": str(told), "HOME": str(told.parent), **armed}
    command, cwd = [BASH, str(script)], told.parent
    try:
        subprocess.run(command, cwd=cwd, env=environ, capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return told.read_text()


@pytest.mark.parametrize("revision", ["v0.2.0", "v0.2.4", "v0.3.0", "v0.3.1"])
def test_every_script_of_slime_starts_ray_armed_and_hands_it_variables(revision: str, tmp_path: Path) -> None:
    """So `overlay run bash SCRIPT` is enough, and where that cannot be, a line in its JSON is."""
    try:
        git_sources.unpack(git_sources.archive("slime", revision, "scripts"), tmp_path)
    except git_sources.FetchError as error:
        pytest.skip(str(error))
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {**dict.fromkeys(SILENT, "#!/bin/bash\n"), "ray": RAY}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in REAL:
        (programs / name).symlink_to(str(shutil.which(name)))
    started = tmp_path / "told.started"
    ran = starts = 0
    for script in sorted((tmp_path / "scripts").glob("run-*.sh")):
        started.unlink(missing_ok=True)
        told = run(script, tmp_path / "told", programs)
        if not told:
            continue  # it submits no job, or not here
        if "ray start" in script.read_text():  # else it is for a cluster that runs already
            assert started.read_text() == "1", script.name
            starts += 1
        variables = json.loads(told)["env_vars"]
        assert variables, script.name
        assert all(isinstance(value, str) for value in variables.values()), script.name
        assert not [name for name in variables if name.startswith("OVERLAY")], script.name
        ran += 1
    assert ran >= starts >= 10
