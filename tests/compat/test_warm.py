"""Programs on a warm server: as processes of their own would be, but for what has been imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import warm_server
from command_line import lives, python

from overlay.compat.ranks import warm
from overlay.compat.ranks.warm import Program

SAYS = "__import__('sys').stderr.write('late')"
FOLDER = str(Path(warm_server.__file__).parent)
TELLS = """
import json, os, sys, time
print(json.dumps([sys.argv[1:], sys.path[0], os.getcwd(), os.environ.get("SAID"), __name__, __file__,
                  "fractions" in sys.modules, "overlay" in sys.modules, os.getsid(0) == os.getpid(),
                  sys.path[1], sys.stdin.read()]))
print("said", file=sys.stderr)
"""


def server(path: str, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a server that imports next to nothing: what it imports is not what is tried here."""
    code = f"import sys; sys.path.insert(0, {FOLDER!r}); import warm_server as w; w.BEFORE = ('fractions',)"
    command = [sys.executable, "-c", f"{code}; w.main({path!r})"]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE)


@pytest.fixture(params=["warm", "own"])
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[dict[str, str]]:
    """Return an environment in which programs start on a small server, and one in which they do not."""
    plain = {name: value for name, value in os.environ.items() if name != warm.VARIABLE}
    if request.param == "own":
        yield plain
        return
    path = str(tmp_path / "socket")
    with server(path, plain):
        yield {**plain, warm.VARIABLE: path}


def ran(text: str, environ: dict[str, str], folder: Path, *arguments: str) -> tuple[int, str, str]:
    program = folder / "program.py"
    program.write_text(text)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = Program([str(program), *arguments], environ, out, err)
        status = started.wait(60)
        started.end()
        said = [(stream.seek(0), stream.read().decode())[1] for stream in (out, err)]
    return status, said[0], said[1]


def test_it_starts_as_python_would_start_it(environ: dict[str, str], tmp_path: Path) -> None:
    import json

    here = {**environ, "SAID": "so", "PYTHONPATH": str(tmp_path / "first")}
    status, out, err = ran(TELLS, here, tmp_path, "a", "b c")
    (arguments, first, folder, said, name, file, imported, ours, leads, second, given) = json.loads(out)
    assert (status, err.strip()) == (0, "said")
    assert (arguments, said, name) == (["a", "b c"], "so", "__main__")
    assert (first, file, folder) == (str(tmp_path), str(tmp_path / "program.py"), str(Path.cwd()))
    assert (ours, leads, second, given) == (False, True, str(tmp_path / "first"), "")
    assert imported is (warm.VARIABLE in environ)


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no more')", 1, "no more"),
        ("raise ValueError('so wrong')", 1, "ValueError: so wrong"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        (f"import atexit; atexit.register(lambda: {SAYS})", 0, "late"),
        (f"import threading, time; threading.Timer(.3, lambda: {SAYS}).start()", 0, "late"),
    ],
)
def test_it_ends_as_it_would(
    environ: dict[str, str], tmp_path: Path, text: str, status: int, said: str
) -> None:
    ended, _, err = ran(text, environ, tmp_path)
    assert (ended, said in err) == (status, True), err


def test_one_that_hangs_is_killed_with_all_that_it_started(environ: dict[str, str], tmp_path: Path) -> None:
    text = "import os, time; child = os.fork(); open(str(os.getpid()) + '.pid', 'w'); time.sleep(3600)"
    program = tmp_path / "program.py"
    program.write_text(f"import os; os.chdir({str(tmp_path)!r})\n{text}")
    with tempfile.TemporaryFile() as out:
        started = Program([str(program)], environ, out, out)
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(0.5)
        while len(pids := list(tmp_path.glob("*.pid"))) < 2:
            time.sleep(0.01)
        started.end()
    while any(lives(int(path.stem)) for path in pids):
        time.sleep(0.01)


def test_a_server_that_is_gone_is_an_error_and_no_wait(tmp_path: Path) -> None:
    """Its socket is left where it was."""
    path = str(tmp_path / "socket")
    with server(path, dict(os.environ)) as process:
        while not Path(path).exists():
            time.sleep(0.01)
        process.kill()
    with tempfile.TemporaryFile() as out, pytest.raises(ConnectionRefusedError):
        Program(["program.py"], {**os.environ, warm.VARIABLE: path}, out, out)


def test_what_is_imported_before_is_nobodys_that_is_patched() -> None:
    ours = {"overlay", "megatron", "verl", "slime", "slime_plugins", "miles"}
    code = (
        "import importlib, sys, contextlib\n"
        f"sys.path.insert(0, {FOLDER!r})\n"
        "from warm_server import BEFORE\n"
        "for name in BEFORE:\n"
        "    with contextlib.suppress(ImportError): importlib.import_module(name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    found = set(python("-W", "ignore", "-c", code).stdout.split())
    assert "torch" in found
    assert not ours & found
