"""The command line of overlay in a process of its own, and an installation for it to look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def clean(**environ: str) -> dict[str, str]:
    """Return the environment of this process without what is said to overlay, and with what is said here."""
    return {name: text for name, text in os.environ.items() if not name.startswith("OVERLAY")} | environ


def python(
    *words: str, seconds: float = 120, folder: str = ".", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, and return how it ended."""
    return subprocess.run(
        [sys.executable, *words], cwd=folder,
        capture_output=True, text=True, timeout=seconds, env=clean(**environ), check=False,
    )  # fmt: skip


def lives(pid: int) -> bool:
    """Return whether a process is there, other than as one that its parent has not asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def git(folder: Path, *words: str, **environ: str) -> str:
    """Run git in a folder, as somebody, and return what it prints."""
    who = {f"GIT_{role}_{what}": "t@t" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-c", "tag.gpgSign=false", "-C", str(folder), *words]
    env = {**os.environ, **who, **environ}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=env)
    return done.stdout.strip()


def overlay(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command, and return how it ended."""
    return python("-m", "overlay", *words, seconds=120, **environ)


def read(*words: str, code: int = 0, **environ: str) -> Any:
    """Run a command that ends with an exit code, and return what it prints as JSON."""
    done = overlay(*words, "--json", **environ)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def unknown_verl(folder: Path) -> Path:
    """Make a folder with a verl 0.8.0 that no patch knows the source of, and return it."""
    (folder / "verl/version").mkdir(parents=True)
    (folder / "verl/version/version").write_text("0.8.0\n")
    (folder / "verl/protocol.py").write_text("")
    return folder
