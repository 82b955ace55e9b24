"""Make the virtual environment in which the demo, the tests and the benchmarks run.

`ensure("demo")` and `ensure("test")` return the environment's Python, and install first whatever is missing.
One environment, `.venv`, serves both: the test tools are added to it. Nothing is asked of the network, and
pip is not even started, when a stamp says that the environment was made from the files as they are now.

Only the standard library is used, and nothing newer than Python 3.8: this is what runs before anything is
installed, with whatever `python3` happens to be. The environment itself is always made with Python 3.11.

What can go wrong while installing, and what is done about it:

- two calls at once: one installs, the other waits (a lock on a file, which the system releases if the holder
  dies);
- a call that is killed: pip may leave half a package that it later takes for a whole one, so a mark is set
  while pip runs, and an environment that still carries it is made anew;
- settings meant for other environments (`PIP_CONSTRAINT`, `PIP_USER`, `PYTHONPATH` …, which training images
  like to set): taken out of the way. Where packages come from (index, proxy, certificates, cache) stays as
  configured.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from environment.python import find_python, output
from environment.setup_base import PYTHON, Layout, Progress, SetupError, child_environment
from environment.setup_pip import began_to_install, pip_install

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

PROFILES = ("demo", "test")
INSIDE = Path(__file__).resolve().parent / "inside.py"
#: Grows when the steps below change in a way that an existing environment must follow.
RECIPE = 1


def packaging_part(pyproject: str) -> str:
    """Return the tables of `pyproject` that decide what gets installed.

    A changed linter setting must not cost an installation, and tomllib is not there before Python 3.11.
    """
    kept = []
    keep = False
    for line in pyproject.splitlines():
        header = re.match(r"\[+([^\[\]]+)\]+\s*(#.*)?$", line)
        if header:
            name = header.group(1).replace(" ", "")
            keep = name in {"build-system", "project"} or name.startswith(("project.", "tool.setuptools"))
        if keep and line.strip():
            kept.append(line)
    return "\n".join(kept)


def digest(profile: str, layout: Layout) -> str:
    """Return what the environment for `profile` is made from, as one hash.

    The checkout's path is part of it, because the editable installation points there.
    """
    parts = [f"recipe {RECIPE}", "python {}.{}".format(*PYTHON), str(layout.root)]
    names = ["constraints.txt", "demo.in"] + (["test.in"] if profile == "test" else [])
    parts += [(layout.requirements / name).read_text(encoding="utf-8") for name in names]
    parts.append(packaging_part((layout.root / "pyproject.toml").read_text(encoding="utf-8")))
    # The editable installation carries the version in its metadata.
    parts.append((layout.root / "overlay" / "_version.py").read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def read_state(layout: Layout) -> dict[str, Any] | None:
    """Return what is recorded of the environment, or None if there is no record or no readable one."""
    try:
        state = json.loads(layout.state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and isinstance(state.get("stamps"), dict) else None


def write_state(layout: Layout, state: dict[str, Any]) -> None:
    """Record `state` so that a reader sees either the old record or the new one."""
    fresh = layout.state.with_suffix(".new")
    fresh.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    fresh.replace(layout.state)


def is_current(profile: str, layout: Layout) -> bool:
    """Tell whether the environment already is what `profile` asks for."""
    state = read_state(layout)
    return (
        state is not None
        and not state.get("installing")
        and state["stamps"].get(profile) == digest(profile, layout)
        and layout.python.exists()
    )


@contextlib.contextmanager
def locked(layout: Layout, progress: Progress) -> Iterator[int]:
    """Hold the lock on the environment; yield its file descriptor.

    The lock belongs to the open file, so a pip that inherits the descriptor keeps it even if this process is
    killed: nobody else starts to install while that pip is still writing.
    """
    import fcntl  # not at the top: where it is missing, a message is better than a traceback

    layout.cache.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(layout.lock), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        waiting = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    waiting = True
                    progress.say("another call is making the environment, waiting for it")
                progress.tick("waiting for the other call")
                time.sleep(0.2)
        yield descriptor
    finally:
        os.close(descriptor)


def _discard(layout: Layout) -> None:
    """Remove the environment. It is moved first: a call that is killed meanwhile leaves none, not half."""
    grave = layout.root / f".venv-discarded-{os.getpid()}"
    layout.venv.replace(grave)
    for old in layout.root.glob(".venv-discarded-*"):
        shutil.rmtree(str(old), ignore_errors=True)


def prepare(layout: Layout, progress: Progress) -> dict[str, Any]:
    """Return the record of an environment that packages can be installed into, and make it if need be.

    A folder `.venv` that somebody else made is left alone: SetupError.
    """
    state = read_state(layout)
    if state is not None:
        reason = None
        if state.get("installing"):
            reason = "an earlier installation was interrupted"
        elif state.get("root") != str(layout.root):
            reason = "the checkout was moved or copied"
        elif state.get("python") != list(PYTHON) or output([str(layout.python), "-c", "import pip"]) is None:
            reason = "its Python is gone or is another one"
        if reason is None:
            return state
        progress.say(f"making {layout.venv} anew: {reason}")
        _discard(layout)
    elif layout.venv.is_symlink() or layout.venv.exists():
        raise SetupError(f"{layout.venv} exists and was not made by this script. Move it away or delete it.")
    python = find_python()
    progress.say(f"making {layout.venv} with {python}")
    state = {"root": str(layout.root), "python": list(PYTHON), "installing": "venv", "stamps": {}}
    layout.venv.mkdir()
    write_state(layout, state)
    done = subprocess.run(
        [python, "-m", "venv", str(layout.venv)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=child_environment(layout),
        check=False,
    )
    if done.returncode:
        _discard(layout)
        raise SetupError(f"{python} -m venv failed:\n{done.stdout.decode(errors='replace').strip()}")
    state["installing"] = None
    write_state(layout, state)
    return state


def steps(profile: str, layout: Layout) -> list[tuple[str, list[str]]]:
    """Return what is installed, in order: a name for people, and the arguments for `pip install`."""
    demo = (layout.requirements / "demo.in").read_text(encoding="utf-8").split("\n")
    torch = next(line.strip() for line in demo if line.startswith("torch=="))
    todo = [
        # torch first: it is most of the download, and what follows may be built against it.
        (torch, [torch, "setuptools"]),
        ("verl, megatron-core and what they need", ["-r", str(layout.requirements / "demo.in")]),
        ("overlay", ["--no-build-isolation", "--editable", str(layout.root)]),
    ]
    if profile == "test":
        todo.append(("the test tools", ["-r", str(layout.requirements / "test.in")]))
    return todo


def ensure(profile: str, layout: Layout | None = None) -> Path:
    """Make sure that the environment for `profile` exists, and return its Python.

    Raises SetupError if it cannot be made.
    """
    layout = Layout() if layout is None else layout
    if profile not in PROFILES:
        raise SetupError(f"unknown profile {profile!r}, there are {' and '.join(PROFILES)}")
    if is_current(profile, layout):
        return layout.python
    progress = Progress()
    with locked(layout, progress) as lock:
        if is_current(profile, layout):
            return layout.python
        layout.log.write_bytes(b"")
        state = prepare(layout, progress)
        done = [name for name in PROFILES if state["stamps"].get(name) == digest(name, layout)]
        skip = len(steps("demo", layout)) if "demo" in done else 0
        if not skip:
            progress.say("installing torch, verl and Megatron, once: minutes, depending on the network")
        state["stamps"] = {name: state["stamps"][name] for name in done}
        state["installing"] = profile
        write_state(layout, state)
        try:
            for name, arguments in steps(profile, layout)[skip:]:
                pip_install(name, arguments, layout, progress, lock)
        except BaseException:
            if not began_to_install(layout):
                state["installing"] = None
                write_state(layout, state)
            raise
        for name in PROFILES[: PROFILES.index(profile) + 1]:
            state["stamps"][name] = digest(name, layout)
        state["installing"] = None
        write_state(layout, state)
        progress.say(f"the environment is ready: {layout.venv}")
    return layout.python


def run_in(profile: str, program: str, arguments: list[str]) -> NoReturn:
    """Become a program, such as `benches.costs`, in the environment for `profile`. It never returns."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    layout = Layout()
    try:
        python = ensure(profile, layout)
    except SetupError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted; run it again to go on")
    sys.stdout.flush()
    sys.stderr.flush()
    command = [str(python), str(INSIDE), program, *arguments]
    os.execve(str(python), command, child_environment(layout))


def main(arguments: list[str] | None = None) -> int:
    """Make the environment and print its Python: `python3 scripts/environment.py [demo|test]`."""
    parser = argparse.ArgumentParser(description="Make the virtual environment of the demo or of the tests.")
    parser.add_argument("profile", nargs="?", choices=PROFILES, default="demo")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        python = ensure(chosen.profile)
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{python}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
