"""Make the virtual environment in which the commands run.

`ensure("demo")` and `ensure("test")` return the environment's Python, and install first whatever is missing.
One environment, `.venv`, serves both: the test tools are added to it. Nothing is asked of the network, and no
tool started, when a stamp says that the environment was made from the files as they are now.

Only the standard library is used, and nothing newer than Python 3.8: this is what runs before anything is
installed, with whatever `python3` happens to be. The environment itself is always made with Python 3.11.

What can go wrong while installing, and what is done about it:

- two calls at once: one installs, the other waits (a lock on a file, which the system releases if the holder
  dies);
- a call that is killed: half a package may be left that is later taken for a whole one, so a mark is set
  while packages are installed, and an environment that still carries it is made anew;
- settings meant for other environments (`PIP_CONSTRAINT`, `PIP_USER`, `PYTHONPATH` …, which training images
  like to set): taken out of the way. Where packages come from (index, proxy, certificates, cache) stays as
  configured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from environment.installers import install
from environment.python import PYTHON, SetupError, find_python, output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
#: Each is added to those before it.
PROFILES = ("demo", "test")
#: Grows when what is done here changes in a way that an existing environment must follow.
RECIPE = 2
#: Settings of the caller that would put packages elsewhere, or other packages in place of the pinned ones.
FOREIGN = re.compile(
    r"PIP_((BUILD_)?CONSTRAINT|REQUIREMENT|TARGET|PREFIX|ROOT|USER|NO_DEPS|UPGRADE|FORCE_REINSTALL"
    r"|IGNORE_INSTALLED|DRY_RUN|LOG)"
    r"|UV_((BUILD_)?CONSTRAINT|OVERRIDE|EXCLUDE|EXCLUDE_NEWER|SYSTEM_PYTHON|PYTHON|PRERELEASE|RESOLUTION"
    r"|NO_BINARY|NO_BUILD_ISOLATION|TORCH_BACKEND)"
    r"|PYTHON(HOME|PATH|SAFEPATH)|__PYVENV_LAUNCHER__"
)


class Layout:
    """Where things are. A class of its own so that tests can point it at an empty folder."""

    def __init__(self, root: Path = ROOT) -> None:
        """Derive every path from `root`, the checkout."""
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.state = self.venv / "overlay-environment.json"
        self.lock = root / ".cache" / "environment.lock"
        self.requirements = root / "scripts" / "environment" / "requirements"

    @staticmethod
    def profiles(profile: str) -> tuple[str, ...]:
        """Return a profile with all that it is added to."""
        return PROFILES[: PROFILES.index(profile) + 1]


def say(message: str) -> None:
    """Write a line on stderr: what the program prints stays alone on stdout."""
    with contextlib.suppress(OSError):  # a closed pipe is no reason to stop installing
        print(message, file=sys.stderr, flush=True)


def child_environment(layout: Layout) -> dict[str, str]:
    """Return the variables for a process inside the environment, as activating it would set them."""
    env = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
    env["VIRTUAL_ENV"] = str(layout.venv)
    env["PATH"] = os.pathsep.join([str(layout.venv / "bin"), env.get("PATH", os.defpath)])
    return env


def packaging_part(pyproject: str) -> str:
    """Return the tables of `pyproject` that decide what gets installed.

    A changed linter setting must not cost an installation, nor a package that comes: an editable installation
    finds it by its folder. tomllib is not there before Python 3.11.
    """
    tables = re.split(r"^(?=\[)", pyproject, flags=re.MULTILINE)
    return "".join(
        table for table in tables if re.match(r"\[+((build-system|project)[].]|tool\.setuptools\.)", table)
    )


def digest(profile: str, layout: Layout) -> str:
    """Return what the environment for `profile` is made from, as one hash.

    The checkout's path is part of it, because the editable installation points there.
    """
    parts = [f"recipe {RECIPE}", "python {}.{}".format(*PYTHON), str(layout.root)]
    names = ["constraints.txt", *(f"{name}.in" for name in layout.profiles(profile))]
    parts += [(layout.requirements / name).read_text(encoding="utf-8") for name in names]
    parts.append(packaging_part((layout.root / "pyproject.toml").read_text(encoding="utf-8")))
    # The editable installation carries the version in its metadata, and copies of the start-up files.
    parts += [path.read_text(encoding="utf-8") for path in sorted((layout.root / "startup").glob("*"))]
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
def locked(layout: Layout) -> Iterator[int]:
    """Hold the lock on the environment; yield its file descriptor. Who inherits that holds it too."""
    import fcntl  # not at the top: where it is missing, a message is better than a traceback

    layout.lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(str(layout.lock), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another call is making the environment, waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def prepare(layout: Layout) -> dict[str, Any]:
    """Return the record of an environment that packages can be installed into, and make it if need be.

    A folder `.venv` that somebody else made is left alone: SetupError.
    """
    state = read_state(layout)
    if state is not None:
        reason = None
        if state.get("installing"):
            reason = "an earlier installation did not end"
        elif state.get("root") != str(layout.root):
            reason = "the checkout was moved or copied"
        elif state.get("python") != list(PYTHON) or output([str(layout.python), "-c", "import pip"]) is None:
            reason = "its Python is gone or is another one"
        if reason is None:
            return state
        say(f"making {layout.venv} anew: {reason}")
        _discard(layout)
    elif layout.venv.is_symlink() or layout.venv.exists():
        raise SetupError(f"{layout.venv} exists and was not made by this script. Move it away or delete it.")
    python = find_python()
    say(f"making {layout.venv} with {python}")
    state = {"root": str(layout.root), "python": list(PYTHON), "installing": "venv", "stamps": {}}
    layout.venv.mkdir()
    write_state(layout, state)
    done = subprocess.run(
        [python, "-m", "venv", str(layout.venv)], stdout=2, env=child_environment(layout), check=False
    )
    if done.returncode:
        raise SetupError(f"{python} -m venv failed: see above")
    return state


def _discard(layout: Layout) -> None:
    """Remove the environment. It is moved first: a call that is killed meanwhile leaves none, not half."""
    layout.venv.replace(layout.root / f".venv-discarded-{os.getpid()}")
    for old in layout.root.glob(".venv-discarded-*"):
        shutil.rmtree(str(old), ignore_errors=True)


def ensure(profile: str, layout: Layout | None = None) -> Path:
    """Make sure that the environment for `profile` exists, and return its Python.

    Raises SetupError if it cannot be made.
    """
    layout = Layout() if layout is None else layout
    if is_current(profile, layout):
        return layout.python
    with locked(layout) as lock:
        if is_current(profile, layout):
            return layout.python
        state = prepare(layout)
        whole = not state["installing"]
        state["installing"] = profile
        write_state(layout, state)
        try:
            install(profile, layout, child_environment(layout), lock)
        except SetupError:
            # A tool that ends by itself has not begun, or has undone it: without a network, what there was
            # before must not be lost. Nothing runs in it until an installation succeeds.
            if whole:
                state["installing"] = None
                write_state(layout, state)
            raise
        state["stamps"].update({name: digest(name, layout) for name in layout.profiles(profile)})
        state["installing"] = None
        write_state(layout, state)
        say(f"the environment is ready: {layout.venv}")
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
    inside = Path(__file__).with_name("inside.py")
    os.execve(str(python), [str(python), str(inside), program, *arguments], child_environment(layout))
