"""What the audit says of verl's own scripts, against the command lines that these really produce.

Each script is run with a stand-in for every program that it starts, which writes down what it was given.
"""

from __future__ import annotations

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
#: What starts a job.
STARTERS = ("accelerate", "python", "python3", "ray", "torchrun", "uv")
#: What else the scripts call. None of it is to do anything.
SILENT = (
    "cp", "curl", "git", "hf", "hostname", "huggingface-cli", "ip", "kill", "mkdir", "mv", "nohup", "nproc",
    "nvidia-smi", "pip", "pip3", "pkill", "rm", "scontrol", "sleep", "ssh", "sudo", "tee", "touch", "wget",
)  # fmt: skip
#: What they really need.
REAL = ("awk", "basename", "cat", "cut", "date", "dirname", "env", "grep", "head", "sed", "seq", "tail", "tr")
STARTER = '#!/bin/bash\n{ printf "%s\\0" "${0##*/}" "$@"; printf "\\1"; } >> "$STARTED"\n'


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name in (*STARTERS, *SILENT):
        (folder / name).write_text(STARTER if name in STARTERS else "#!/bin/bash\n")
        (folder / name).chmod(0o755)
    for name in REAL:
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def started(script: Path, programs: Path, told: Path) -> list[list[str]]:
    """Return the command lines with settings of verl that a script produces."""
    told.write_text("")
    environ = {"PATH": str(programs), "STARTED": str(told), "HOME": str(told.parent)}
    try:
        subprocess.run(
            [BASH, str(script)], cwd=script.parent, env=environ, capture_output=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return []
    lines = [line.split("\0")[:-1] for line in told.read_text().split("\1")[:-1]]
    return [line for line in lines if any(re.match(r"\+{0,2}[\w]+(\.\w+)+=", word) for word in line)]


def on_megatron(line: list[str]) -> bool:
    """Return whether a command line selects Megatron as the engine of training."""
    whole = " ".join(line)
    return bool(re.search(r"(model_)?engine=megatron|config-name[= ]\S*megatron", whole))


@pytest.fixture
def read(
    tmp_path: Path,
    listed: Callable[[str], Path],
    release: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Path], Settings]:
    """Return the function that reads settings for verl's main branch; its options are read once."""
    tree = InstalledTree([str(listed("verl main")), str(release("megatron-core==0.16.1"))])
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
def test_no_script_of_verl_gets_false_peace(
    tmp_path: Path, programs: Path, read: Callable[[Path], Settings]
) -> None:
    """What a script is said not to meet, the command line that it produces does not meet either."""
    try:
        git_sources.unpack(git_sources.archive("verl", COMMIT, "examples"), tmp_path)
    except git_sources.FetchError as error:
        pytest.skip(str(error))
    compared = megatron = 0
    false = []
    for script in sorted((tmp_path / "examples").rglob("*.sh")):
        assert "/pkill" not in script.read_text()
        lines = started(script, programs, tmp_path / "started")
        if lines:
            compared += 1
            megatron += any(map(on_megatron, lines))
            false += falsely_not_met(script, lines, read)
    print(f"{compared} scripts compared, {megatron} of them on Megatron")
    assert compared >= 80
    assert megatron >= 25
    assert false == []
