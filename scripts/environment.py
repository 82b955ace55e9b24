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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, NoReturn, TextIO

ROOT = Path(__file__).resolve().parent.parent
PROFILES = ("demo", "test")
PYTHON = (3, 11)
#: Grows when the steps below change in a way that an existing environment must follow.
RECIPE = 1
#: Settings of the caller that would put packages elsewhere, or other packages in place of the pinned ones.
FOREIGN_SETTINGS = (
    "PIP_CONSTRAINT",
    "PIP_BUILD_CONSTRAINT",
    "PIP_REQUIREMENT",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
    "PIP_NO_DEPS",
    "PIP_UPGRADE",
    "PIP_FORCE_REINSTALL",
    "PIP_IGNORE_INSTALLED",
    "PIP_DRY_RUN",
    "PIP_LOG",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSAFEPATH",
    "__PYVENV_LAUNCHER__",
)


class SetupError(Exception):
    """The environment cannot be made. The message says what to do about it."""


class Layout:
    """Where things are. A class of its own so that tests can point it at an empty folder."""

    def __init__(self, root: Path = ROOT) -> None:
        """Derive every path from `root`, the checkout."""
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.state = self.venv / "overlay-environment.json"
        self.cache = root / ".cache"
        self.lock = self.cache / "environment.lock"
        self.log = self.cache / "install.log"
        self.requirements = root / "scripts" / "requirements"
        self.constraints = self.requirements / "constraints.txt"


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


def child_environment(layout: Layout) -> dict[str, str]:
    """Return the variables for a process inside the environment, as activating it would set them."""
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN_SETTINGS}
    env["VIRTUAL_ENV"] = str(layout.venv)
    env["PATH"] = os.pathsep.join([str(layout.venv / "bin"), env.get("PATH", os.defpath)])
    return env


class Progress:
    """One line on stderr that says what is being done and for how long.

    On a terminal the line is rewritten in place; elsewhere (a CI log) a line is added every 15 seconds.
    """

    INTERVAL = 15.0

    def __init__(self, stream: TextIO | None = None) -> None:
        """Start the clock. `stream` is stderr unless told otherwise."""
        self.stream = sys.stderr if stream is None else stream
        self.started = time.monotonic()
        self.in_place = self.stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}
        self.width = shutil.get_terminal_size().columns if self.in_place else 110
        self.last = self.started

    def _write(self, text: str) -> None:
        # A closed pipe on stderr is no reason to stop installing.
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()

    def _text(self, message: str) -> str:
        text = f"[{time.monotonic() - self.started:4.0f} s] {message}"
        return text if len(text) < self.width else text[: self.width - 2] + "…"

    def say(self, message: str) -> None:
        """Write a line that stays."""
        self.last = time.monotonic()
        text = f"[{self.last - self.started:4.0f} s] {message}"
        self._write(("\r\x1b[K" if self.in_place else "") + text + "\n")

    def tick(self, message: str) -> None:
        """Show `message` as what is being done right now; call it as often as you like."""
        if self.in_place:
            self._write("\r\x1b[K" + self._text(message))
        elif time.monotonic() - self.last >= self.INTERVAL:
            self.last = time.monotonic()
            self._write(self._text(message) + "\n")


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


def _candidates() -> Iterator[str]:
    yield sys.executable
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders += ["/usr/local/bin", "/usr/bin", "/opt/homebrew/bin"]
    wanted = "python{}.{}".format(*PYTHON)
    for name in (wanted, "python3", "python"):
        for folder in folders:
            yield str(Path(folder) / name)
    # Version managers whose interpreters need not be on the PATH, or are there as shims that refuse to start.
    homes = [os.environ.get("PYENV_ROOT", ""), "~/.pyenv", "~/.local/share/uv/python"]
    for home in filter(None, homes):
        for pattern in ("versions/{}.{}*/bin/", "cpython-{}.{}*/bin/"):
            found = Path(home).expanduser().glob(pattern.format(*PYTHON) + wanted)
            yield from sorted(map(str, found), reverse=True)


def find_python(candidates: Iterable[str] | None = None) -> str:
    """Return the path of a CPython 3.11 that can make virtual environments.

    Raises SetupError that says what was found instead and what to install.
    """
    probe = (
        "import sys, platform, ssl, venv; import ensurepip;"
        "print(*sys.version_info[:2], platform.python_implementation(), sys.executable, sep='\\n')"
    )
    version_only = "import sys; print(*sys.version_info[:2])"
    seen = set()
    crippled = []
    for path in _candidates() if candidates is None else candidates:
        if not path or path in seen or not os.access(path, os.X_OK) or Path(path).is_dir():
            continue
        seen.add(path)
        answer = _output([path, "-I", "-c", probe])
        if answer is None:
            if _output([path, "-I", "-c", version_only]) == "{} {}".format(*PYTHON):
                crippled.append(path)
            continue
        major, minor, implementation, executable = answer.split("\n", 3)
        if (int(major), int(minor)) == PYTHON and implementation == "CPython":
            return executable or path
    message = (
        "Python {0}.{1} is needed and was not found (the packages of the demo are tested on it alone).\n"
    )
    if crippled:
        message = "{2} is a Python {0}.{1} that cannot make virtual environments (no ensurepip or ssl).\n"
    message += (
        "Install it and run this again, for example:\n"
        "  Debian, Ubuntu    apt-get install python{0}.{1} python{0}.{1}-venv\n"
        "  Fedora            dnf install python{0}.{1}\n"
        "  macOS             brew install python@{0}.{1}\n"
        "  anywhere          pyenv install {0}.{1}    or    uv python install {0}.{1}"
    )
    raise SetupError(message.format(*PYTHON, ", ".join(crippled)))


def _output(command: list[str]) -> str | None:
    """Return what `command` prints, or None if it fails, does not exist or hangs."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


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
        elif state.get("python") != list(PYTHON) or _output([str(layout.python), "-c", "import pip"]) is None:
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


def _doing(log_tail: str) -> str:
    """Say in a few words what pip is doing, from the end of its log."""
    for line in reversed(log_tail.splitlines()):
        words = line.strip()
        if words.startswith(("Collecting ", "Downloading ", "Using cached ", "Building ", "Preparing ")):
            return words.split(" (from ")[0]
        if words.startswith("Installing collected packages"):
            return f"installing {words.count(',') + 1} packages"
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
                    progress.tick(f"{name}: {_doing(_tail(layout.log, 20_000))}")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        output = _tail(layout.log, layout.log.stat().st_size - begin)
        raise SetupError(_failure(name, process.returncode, output, layout))
    progress.say(f"installed {name}")


def _began_to_install(layout: Layout) -> bool:
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
            if not _began_to_install(layout):
                state["installing"] = None
                write_state(layout, state)
            raise
        for name in PROFILES[: PROFILES.index(profile) + 1]:
            state["stamps"][name] = digest(name, layout)
        state["installing"] = None
        write_state(layout, state)
        progress.say(f"the environment is ready: {layout.venv}")
    return layout.python


def run_in(profile: str, script: str, arguments: list[str]) -> NoReturn:
    """Become `script` (a file beside this one) running in the environment for `profile`.

    This is the whole of scripts/demo, scripts/test and scripts/bench. It never returns.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    layout = Layout()
    target = layout.root / "scripts" / script
    if not target.is_file():
        sys.exit(f"{target} is missing from this checkout.")
    try:
        python = ensure(profile, layout)
    except SetupError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted; run it again to go on")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(str(python), [str(python), str(target), *arguments], child_environment(layout))


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
