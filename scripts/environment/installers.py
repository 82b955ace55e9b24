"""Install the pinned packages with uv, or with pip where there is no uv.

uv takes three fifths of the processor time that pip takes for these packages, and less waiting. It comes from
the path, or from wherever pip finds packages; it reads neither pip's files nor its variables, so these are
told to it. A lock of its own (`uv sync`) would name one index, and people have theirs.

Standard library and Python 3.8 only, see setup.py.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys

from environment.python import SetupError, output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from environment.setup import Layout

#: What pip calls where packages come from, and what uv does; of uv's, some are lists with commas.
_SOURCES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}


def install(layout: Layout, env: dict[str, str], lock: int) -> None:
    """Install what the commands need, and this project. What the tool says goes to stderr.

    The tool inherits the lock: nobody else starts to install while it is still writing, whatever becomes of
    this process.

    Raises SetupError.
    """
    env = {**env, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    python, constraints = str(layout.python), str(layout.constraints)
    wanted = ["--requirement", str(layout.requirements)]
    # Without a second download of what builds it, in an environment of its own.
    own = ["--no-build-isolation", "--editable", str(layout.root)]

    def run(tool: list[str], settings: dict[str, str]) -> bool:
        commands = [[*tool, "--constraint", constraints, *words] for words in (wanted, own)]
        return all(_call(command, {**env, **settings}, layout.root, lock) for command in commands)

    uv = _find_uv(layout, env, lock)
    if uv is not None:
        # Links would make one file of this environment's and of every other's.
        settings = {
            **_settings_of_uv(python, env),
            "UV_LINK_MODE": "copy",
            "UV_BUILD_CONSTRAINT": constraints,
        }
        if run([uv, "pip", "install", "--compile-bytecode", "--python", python], settings):
            return
        sys.stderr.write("uv could not install everything, pip tries\n")
    # For what builds a package too; a path would be split at its blanks.
    address = layout.constraints.as_uri()
    if not run(
        [python, "-m", "pip", "install"], {"PIP_CONSTRAINT": address, "PIP_BUILD_CONSTRAINT": address}
    ):
        raise SetupError(
            "The packages could not be installed: see above. They take 2 GB, or about 7 with a CUDA torch."
        )


def _find_uv(layout: Layout, env: dict[str, str], lock: int) -> str | None:
    """Return the path of uv, installed into the environment unless there is one; None if none runs."""
    found, own = shutil.which("uv"), layout.python.with_name("uv")
    if found is None and not own.exists():
        command = [str(layout.python), "-m", "pip", "install", "--quiet", "uv"]
        command += ["--constraint", str(layout.constraints)]
        _call(command, env, layout.root, lock)
    path = found or str(own)
    return None if output([path, "--version"]) is None else path


def _settings_of_uv(python: str, env: dict[str, str]) -> dict[str, str]:
    """Return what pip is configured with in uv's variables, but those that are set."""
    lines = (output([python, "-m", "pip", "config", "list"], env) or "").splitlines()
    # As pip looks for the best version in all places, and its variables come before its files.
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        variable, separator = _SOURCES.get(name.rpartition(".")[2], ("", ""))
        if variable:
            settings[variable] = separator.join(str(ast.literal_eval(value)).split())
    return {name: value for name, value in settings.items() if name not in env}


def _call(command: list[str], env: dict[str, str], folder: Path, lock: int) -> bool:
    """Run a command with its output on stderr, and return whether it went well."""
    sys.stderr.flush()
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        env=env,
        cwd=str(folder),
        pass_fds=(lock,),
        check=False,
    )
    if done.returncode < 0:
        raise SetupError(f"{' '.join(command[:3])} ended with signal {-done.returncode}")
    return done.returncode == 0
