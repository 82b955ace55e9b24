"""Make `.venv`, the virtual environment in which the commands run.

`ensure()` returns its Python, and installs first whatever is missing. Nothing is asked of the network, and no
tool started, when the record in it says that it was made from the files as they are now.

Only the standard library is used, and nothing newer than Python 3.8: this is what runs before anything is
installed, with whatever `python3` happens to be. The environment itself is always made with Python 3.11.

uv or pip install (`installers.py`). What is left to do here is what neither does:

- two calls at once: one installs, the other waits (a lock on a file, which the system releases if the holder
  dies);
- a call that is killed: half a package may be left that is later taken for a whole one, so there is no record
  while packages are installed, and an environment without one is made anew;
- settings meant for other environments (`PIP_CONSTRAINT`, `PIP_USER`, `PYTHONPATH` …, which training images
  like to set): taken out of the way. Where packages come from (index, proxy, certificates, cache) stays as
  configured.
"""

from __future__ import annotations

import contextlib
import hashlib
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
    from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
#: Grows when what is done here changes in a way that an existing environment must follow.
RECIPE = 3
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
        #: What the environment was made from, empty while it is being made.
        self.record = self.venv / "overlay-environment.json"
        self.lock = root / ".cache" / "environment.lock"
        folder = root / "scripts" / "environment" / "requirements"
        self.requirements, self.constraints = folder / "environment.in", folder / "constraints.txt"


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


def base(layout: Layout) -> str:
    """Return what an environment cannot follow a change of, so that it is made anew.

    The checkout's path is part of it, because the editable installation points there.
    """
    return f"recipe {RECIPE}, Python {PYTHON[0]}.{PYTHON[1]}, {layout.root}"


def wanted(layout: Layout) -> str:
    """Return the record of an environment that is made from the files as they are now."""
    # The editable installation carries the version in its metadata, and copies of the start-up files.
    paths = [layout.constraints, layout.requirements, layout.root / "overlay" / "_version.py"]
    paths += sorted((layout.root / "startup").glob("*"))
    parts = [path.read_text(encoding="utf-8") for path in paths]
    parts.append(packaging_part((layout.root / "pyproject.toml").read_text(encoding="utf-8")))
    return f"{base(layout)}\n{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}\n"


def recorded(layout: Layout) -> str | None:
    """Return the record, `None` if there is none or none that can be read."""
    try:
        return layout.record.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def is_current(layout: Layout) -> bool:
    """Tell whether the environment already is what the files ask for."""
    return recorded(layout) == wanted(layout) and layout.python.exists()


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


def prepare(layout: Layout) -> None:
    """Make an environment that packages can be installed into, unless there is one.

    A folder `.venv` that somebody else made is left alone: SetupError.
    """
    record = recorded(layout)
    if record is not None:
        if not record:
            reason = "an earlier installation did not end"
        elif record.partition("\n")[0] != base(layout):
            reason = "the checkout was moved or copied, or is made in another way now"
        elif output([str(layout.python), "-c", "import pip"]) is None:
            reason = "its Python is gone"
        else:
            return
        say(f"making {layout.venv} anew: {reason}")
        _discard(layout)
    elif layout.venv.is_symlink() or (layout.venv.exists() and any(layout.venv.iterdir())):
        raise SetupError(f"{layout.venv} exists and was not made by this script. Move it away or delete it.")
    python = find_python()
    say(f"making {layout.venv} with {python}")
    layout.venv.mkdir(exist_ok=True)
    layout.record.touch()
    command = [python, "-m", "venv", str(layout.venv)]
    if subprocess.run(command, stdout=2, env=child_environment(layout), check=False).returncode:
        raise SetupError(f"{python} -m venv failed: see above")


def _discard(layout: Layout) -> None:
    """Remove the environment. It is moved first: a call that is killed meanwhile leaves none, not half."""
    layout.venv.replace(layout.root / f".venv-discarded-{os.getpid()}")
    for old in layout.root.glob(".venv-discarded-*"):
        shutil.rmtree(str(old), ignore_errors=True)


def ensure(layout: Layout | None = None) -> Path:
    """Make sure that the environment exists, and return its Python.

    Raises SetupError if it cannot be made.
    """
    layout = Layout() if layout is None else layout
    if is_current(layout):
        return layout.python
    with locked(layout) as lock:
        if is_current(layout):
            return layout.python
        prepare(layout)
        before = recorded(layout) or ""
        layout.record.write_text("")
        try:
            install(layout, child_environment(layout), lock)
        except SetupError:
            # A tool that ends by itself has not begun, or has undone it: without a network, what there was
            # before must not be lost. Nothing runs in it until an installation succeeds.
            layout.record.write_text(before)
            raise
        layout.record.write_text(wanted(layout))
        say(f"the environment is ready: {layout.venv}")
    return layout.python


def run_in(program: str, arguments: list[str]) -> NoReturn:
    """Become a program, such as `benches.costs`, in the environment. It never returns."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    layout = Layout()
    try:
        python = ensure(layout)
    except SetupError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted; run it again to go on")
    sys.stdout.flush()
    sys.stderr.flush()
    inside = Path(__file__).with_name("inside.py")
    os.execve(str(python), [str(python), str(inside), program, *arguments], child_environment(layout))
