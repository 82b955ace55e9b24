"""Make `.venv`, the environment of all commands, with uv from a lock file.

`requirements.lock` names the version of every package. It has neither hashes nor an index: one version of
torch is a different file for the CPU and for CUDA, and the index that pip is configured with decides which
one comes. A `uv.lock` would name the index and the file, so `uv sync` can't do this.

A record in the environment says what it was made from. While that has not changed, no tool starts and nothing
is asked of the network. uv installs; this script

- installs uv with pip, into `.cache`, and tells it where pip finds packages;
- lets one command install while others wait;
- makes an environment anew after an interrupted installation, which may have left half a package;
- removes settings that are meant for other environments (`PIP_CONSTRAINT`, `PIP_USER`, `PYTHONPATH` ...).

Nothing outside the checkout changes, except the caches of pip and uv.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
#: The version of Python that the lock file is for.
PYTHON = "3.11"
#: Settings of the caller that would put packages elsewhere, or put others in place of the locked ones.
FOREIGN = re.compile(
    r"PIP_((BUILD_)?CONSTRAINT|REQUIREMENT|TARGET|PREFIX|ROOT|USER|NO_DEPS|UPGRADE|FORCE_REINSTALL"
    r"|IGNORE_INSTALLED|DRY_RUN|LOG)"
    r"|UV_((BUILD_)?CONSTRAINT|OVERRIDE|EXCLUDE|EXCLUDE_NEWER|SYSTEM_PYTHON|PYTHON|PRERELEASE|RESOLUTION"
    r"|NO_BINARY|NO_BUILD_ISOLATION|TORCH_BACKEND)"
    r"|PYTHON(HOME|PATH|SAFEPATH)|__PYVENV_LAUNCHER__"
)
#: What pip calls the places that packages come from: uv's variable, and what separates its values.
SOURCES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
}


class SetupError(Exception):
    """The environment cannot be made. The message says what to do about it."""


class Layout:
    """Where things are below `root`, the checkout."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        #: What the environment was made from; empty while it is being made.
        self.record = self.venv / "overlay-environment.json"
        self.cache = root / ".cache"
        self.requirements = root / "scripts" / "environment" / "requirements.lock"


def say(message: str) -> None:
    """Write a line to stderr, so that stdout holds nothing but what the program prints."""
    with contextlib.suppress(OSError):  # a closed pipe is no reason to stop installing
        print(message, file=sys.stderr, flush=True)


def child_environment(layout: Layout) -> dict[str, str]:
    """Return the variables for a process inside the environment, as activating it would set them."""
    env = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
    env["VIRTUAL_ENV"] = str(layout.venv)
    env["PATH"] = os.pathsep.join([str(layout.venv / "bin"), env.get("PATH", os.defpath)])
    return env


def base(layout: Layout) -> str:
    """Return what an environment cannot be moved to by installing: the editable install has the path."""
    return f"uv, Python {PYTHON}, {layout.root}\n"


def wanted(layout: Layout) -> str:
    """Return the record of an environment that is made from the files as they are now."""
    # The editable install holds the version, and copies of the start-up files.
    paths = [layout.requirements, layout.root / "pyproject.toml", layout.root / "overlay" / "_version.py"]
    parts = [path.read_bytes() for path in (*paths, *sorted((layout.root / "startup").glob("*")))]
    return f"{base(layout)}{hashlib.sha256(bytes(1).join(parts)).hexdigest()}\n"


def recorded(layout: Layout) -> str | None:
    """Return the record, `None` if there is none."""
    return layout.record.read_text(encoding="utf-8") if layout.record.exists() else None


def is_current(layout: Layout) -> bool:
    """Tell whether the environment already is what the files ask for."""
    return recorded(layout) == wanted(layout) and layout.python.exists()


def ensure(layout: Layout | None = None) -> Path:
    """Make sure that the environment is current, and return its Python.

    Raises SetupError if it cannot be made.
    """
    layout = Layout() if layout is None else layout
    if is_current(layout):
        return layout.python
    with locked(layout):
        if not is_current(layout):
            make(layout)
    return layout.python


@contextlib.contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Hold the lock, which a tool inherits: the system releases it when the last of its holders is gone."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    with (layout.cache / "environment.lock").open("w") as file:
        os.set_inheritable(file.fileno(), True)  # noqa: FBT003 -- the name says what
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another call is making the environment, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make(layout: Layout) -> None:
    """Bring the environment to what the files ask for, under the lock.

    Raises SetupError: a tool failed, and an environment that worked before still does; or there is a `.venv`
    of somebody else, which is left alone.
    """
    before = recorded(layout)
    if before is None and (layout.venv.is_symlink() or (layout.venv.exists() and any(layout.venv.iterdir()))):
        raise SetupError(f"{layout.venv} exists and was not made by this script. Move it away or delete it.")
    env = child_environment(layout)
    env.update(settings_of_uv(layout, env))
    uv = find_uv(layout, env)
    if not before or not before.startswith(base(layout)) or not layout.python.exists():
        if before is not None:
            reason = "it was moved, or made in another way" if before else "its installation did not end"
            say(f"making {layout.venv} anew: {reason}")
        before = ""
        python = sys.executable if sys.version.startswith(f"{PYTHON}.") else PYTHON
        try:
            run([uv, "venv", "--no-project", "--clear", "--python", python, str(layout.venv)], layout, env)
        except SetupError as error:
            raise SetupError(
                f"CPython {PYTHON} is needed, and uv neither found nor downloaded it: see above. Install it "
                f"with `apt-get install python{PYTHON}` or `pyenv install {PYTHON}`, and run this again."
            ) from error
    layout.record.write_text("")
    install = [uv, "pip", "install", "--compile-bytecode", "--python", str(layout.python)]
    lock = str(layout.requirements)
    try:
        run([*install, "--build-constraints", lock, "--requirements", lock], layout, env)
        # Built with what is locked, not with a download of its own.
        own = ["--no-deps", "--no-build-isolation", "--reinstall", "--editable", str(layout.root)]
        run([*install, *own], layout, env)
    except SetupError:
        # uv installs nothing before it has everything: without a network, what was there still works.
        layout.record.write_text(before)
        raise
    layout.record.write_text(wanted(layout))
    say(f"the environment is ready: {layout.venv}")


def settings_of_uv(layout: Layout, env: dict[str, str]) -> dict[str, str]:
    """Return uv's variables for what pip is configured with and for this checkout, except those in `env`."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    settings = {
        # As pip does: the best version of all places, and the certificates of the system.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_SYSTEM_CERTS": "1",
        # Links would make one file of this environment's and of every other's.
        "UV_LINK_MODE": "copy",
        # A Python that uv downloads stays in the checkout.
        "UV_PYTHON_INSTALL_DIR": str(layout.cache / "python"),
    }
    # pip's variables come before its files.
    for line in sorted(done.stdout.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        variable, separator = SOURCES.get(name.rpartition(".")[2], ("", ""))
        if variable:
            settings[variable] = separator.join(str(ast.literal_eval(value)).split())
    return {name: value for name, value in settings.items() if name not in env}


def find_uv(layout: Layout, env: dict[str, str]) -> str:
    """Return the path of uv: the locked one, which pip installs into `.cache`, or else the PATH's."""
    (pin,) = re.findall(r"^uv==\S+", layout.requirements.read_text(encoding="utf-8"), re.MULTILINE)
    folder = layout.cache / pin
    if not folder.exists():
        part = folder.with_name(f"{pin}.part")
        shutil.rmtree(part, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        try:
            run([*pip, "--target", str(part), pin], layout, env)
        except SetupError as error:
            if found := shutil.which("uv"):
                return found
            raise SetupError(f"{sys.executable} -m pip could not install uv: see above.") from error
        part.replace(folder)
    return str(folder / "bin" / "uv")


def run(command: list[str], layout: Layout, env: dict[str, str]) -> None:
    """Run a tool with its output on stderr. Raises SetupError if it fails, SystemExit if it was killed."""
    sys.stderr.flush()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=2, env=env, cwd=layout.root, close_fds=False, check=False
    )
    name = " ".join(command[:3])
    if done.returncode < 0:
        sys.exit(f"{name} ended with signal {-done.returncode}")  # and may have left half a package
    if done.returncode:
        size = "2 GB, or 7 GB with a CUDA build of torch"
        raise SetupError(f"{name} failed: see above. The packages take {size}.")


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
