"""Upstreams' own launch scripts, run with a stand-in for every program that they start.

What `overlay audit` says of verl's is held against the command lines that they really produce, and slime's
hand what arms a job to the Ray that they start.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from overlay.desk.audit import job_settings
from overlay.desk.audit.audit import read_settings
from overlay.desk.audit.job_settings import answer
from overlay.source.known_defects import load_defects
from overlay.source.registry import load_patches
from overlay.source.source import InstalledTree
from sources import git_sources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.defect import Dialect
    from overlay.desk.audit.job_settings import Settings
    from overlay.patch import ReadFile

pytestmark = pytest.mark.real

BASH = str(shutil.which("bash"))
COMMIT = "1dda039b9"
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
#: What starts a job of verl, which writes down what it was given.
STARTERS = dict.fromkeys(
    ("accelerate", "python", "python3", "ray", "torchrun", "uv"),
    '#!/bin/bash\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\1"; } >> "$TOLD"\n',
)
#: What starts Ray for slime, and submits the job with its variables.
RAY = """#!/bin/bash
if [ "$1" = start ]; then printf '%s' "$OVERLAY" > "$TOLD.started"; fi
for word in "$@"; do
  case "$word" in --runtime-env-json=*) printf '%s' "${word#--runtime-env-json=}" > "$TOLD";; esac
done
"""


class Scripts:
    """The scripts of a revision, and the programs that they find."""

    def __init__(self, folder: Path, source: tuple[str, str, str], starters: dict[str, str]) -> None:
        """Take them from a project, its revision and a path in it."""
        try:
            git_sources.unpack(git_sources.archive(*source), folder)
        except git_sources.FetchError as error:
            pytest.skip(str(error))
        self.folder, self.told, self.programs = folder / source[2], folder / "told", folder / "programs"
        self.programs.mkdir()
        for name, text in {**dict.fromkeys(SILENT, "#!/bin/bash\n"), **starters}.items():
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)
        for name in REAL:
            (self.programs / name).symlink_to(str(shutil.which(name)))

    def run(self, script: Path, cwd: Path, **environ: str) -> str:
        """Run a script, and return what is told meanwhile, nothing if it does not end."""
        assert "/pkill" not in script.read_text()
        self.told.write_text("")
        home = str(self.folder.parent)
        environ = {"PATH": str(self.programs), "TOLD": str(self.told), "HOME": home, **environ}
        command = [BASH, str(script)]
        try:
            subprocess.run(command, cwd=cwd, env=environ, capture_output=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            return ""
        return self.told.read_text()


@pytest.mark.parametrize("revision", ["v0.2.0", "v0.2.4", "v0.3.0", "v0.3.1"])
def test_every_script_of_slime_starts_ray_armed_and_hands_it_variables(revision: str, tmp_path: Path) -> None:
    """So `overlay run bash SCRIPT` is enough, and where that cannot be, a line in its JSON is."""
    scripts = Scripts(tmp_path, ("slime", revision, "scripts"), {"ray": RAY})
    armed = {"OVERLAY": "1", "MASTER_ADDR": "127.0.0.1", "MLP_WORKER_0_HOST": "127.0.0.1", "BASE_DIR": "/x"}
    ran = starts = 0
    for script in sorted(scripts.folder.glob("run-*.sh")):
        started = scripts.told.with_name("told.started")
        started.unlink(missing_ok=True)
        told = scripts.run(script, tmp_path, **armed)
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


def on_megatron(line: list[str]) -> bool:
    """Return whether a command line selects Megatron as the engine of training."""
    whole = " ".join(line)
    return bool(re.search(r"(model_)?engine=megatron|config-name[= ]\S*megatron", whole))


@pytest.fixture
def read(listed: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Settings]:
    """Return the function that reads settings for verl's main branch; its options are read once."""
    tree = InstalledTree([str(listed("verl main")), str(listed("megatron-core==0.16.1"))])
    declared: dict[str, Any] = {}
    found = vars(job_settings)["options"]

    def once(dialect: Dialect, read: ReadFile) -> Any:
        if dialect.name not in declared:
            declared[dialect.name] = found(dialect, read)
        return declared[dialect.name]

    monkeypatch.setattr(job_settings, "options", once)
    return lambda path: read_settings(str(path), tree)


def falsely_not_met(script: Path, lines: list[list[str]], read: Callable[[Path], Settings]) -> list[str]:
    """Return what a script is said not to meet that the command lines which it produces may meet."""
    jobs = []
    for line in lines:
        path = script.with_suffix(".line")
        path.write_text(shlex.join(line).replace("\n", " "))
        jobs.append(read(path))
    settings = read(script)
    megatron = any(map(on_megatron, lines))
    # The command line of SFT leaves RL's roles at their defaults, which mean nothing there.
    sft = "sft" in script.parts
    false = []
    for defect in load_defects(load_patches()).values():
        said = answer(defect, settings)
        if said.word == "not-met" and defect.project.name in ("verl", "megatron-core"):
            wrong = megatron and said.why.startswith("strategy is fsdp")
            if wrong or (not sft and any(answer(defect, job).word != "not-met" for job in jobs)):
                false.append(f"{script.name}: {defect.id}: {said.why}")
    return false


@pytest.mark.nightly("the tests of the audit read command lines by day")
def test_no_script_of_verl_gets_false_peace(tmp_path: Path, read: Callable[[Path], Settings]) -> None:
    """What a script is said not to meet, the command line that it produces does not meet either."""
    scripts = Scripts(tmp_path, ("verl", COMMIT, "examples"), STARTERS)
    compared = megatron = 0
    false = []
    for script in sorted(scripts.folder.rglob("*.sh")):
        started = [line.split("\0")[:-1] for line in scripts.run(script, script.parent).split("\1")[:-1]]
        # Those with settings of verl.
        lines = [line for line in started if any(re.match(r"\+{0,2}[\w]+(\.\w+)+=", word) for word in line)]
        if lines:
            compared += 1
            megatron += any(map(on_megatron, lines))
            false += falsely_not_met(script, lines, read)
    print(f"{compared} scripts compared, {megatron} of them on Megatron")
    assert compared >= 80
    assert megatron >= 25
    assert false == []
