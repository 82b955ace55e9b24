"""Run pip in the environment: under the constraints, with a log, and with signs of life.

Standard library and Python 3.8 only, see environment.py.
"""

from __future__ import annotations

import os
import subprocess

from environment.setup_base import SetupError, child_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from environment.setup_base import Layout, Progress


def doing(log_tail: str) -> str:
    """Say in a few words what the last pip is doing, from the end of the log."""
    for line in reversed(log_tail.rsplit("\n$ ", 1)[-1].splitlines()):
        words = line.strip()
        if words.startswith(("Collecting ", "Downloading ", "Using cached ", "Building ", "Preparing ")):
            return words.split(" (from ")[0]
        if words.startswith("Installing collected packages"):
            count = words.count(",") + 1
            return f"installing {count} package{'s' if count > 1 else ''}"
    return "starting pip"


def _tail(path: Path, size: int) -> str:
    with path.open("rb") as log:
        log.seek(0, os.SEEK_END)
        log.seek(max(0, log.tell() - size))
        return log.read().decode(errors="replace")


def pip_install(name: str, arguments: list[str], layout: Layout, progress: Progress, lock: int) -> None:
    """Run `pip install` with `arguments` under the constraints, and show how it goes.

    Raises SetupError with the end of pip's output.
    """
    env = child_environment(layout)
    constraints = layout.constraints.as_uri()  # a plain path would be split at its blanks
    # The second name is for pip 25.3 and newer. Both hold for what builds a package, not just for the result.
    env.update(PIP_CONSTRAINT=constraints, PIP_BUILD_CONSTRAINT=constraints)
    env.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PYTHONUNBUFFERED="1")
    command = [str(layout.python), "-m", "pip", "install", "--progress-bar", "off", *arguments]
    with layout.log.open("ab") as log:
        log.write(f"$ {' '.join(command)}\n".encode())
        log.flush()
        begin = log.tell()
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=env,
            cwd=str(layout.root),
            pass_fds=(lock,),
        )
        try:
            while True:
                try:
                    process.wait(0.25)
                    break
                except subprocess.TimeoutExpired:
                    progress.tick(f"{name}: {doing(_tail(layout.log, 20_000))}")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        output = _tail(layout.log, layout.log.stat().st_size - begin)
        raise SetupError(_failure(name, process.returncode, output, layout))
    progress.say(f"installed {name}")


def began_to_install(layout: Layout) -> bool:
    """Tell whether the last pip was past downloading, so that it may have left a package in pieces."""
    return "Installing collected packages" in _tail(layout.log, 1_000_000).rsplit("\n$ ", 1)[-1]


def _failure(name: str, code: int, output: str, layout: Layout) -> str:
    """Compose the message for a failed pip: the end of its output, where the rest is, a way out if known."""
    hints = {
        "No matching distribution found": "The index that pip is configured for does not have this package.",
        "No space left on device": "The environment takes 2 GB, and about 7 GB with a CUDA torch.",
        "Failed to establish a new connection": "The package index cannot be reached. Is a proxy to be set?",
        "Read timed out": "The network is slow. Run this again: what was downloaded is kept.",
    }
    lines = [f"pip could not install {name} (exit code {code}). The end of its output:", ""]
    lines += [f"  {line}" for line in output.rstrip().splitlines()[-15:]]
    lines += ["", f"All of it: {layout.log}"]
    lines += [hint for text, hint in hints.items() if text in output]
    return "\n".join(lines)
