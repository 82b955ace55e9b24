"""A script that enables below `__main__`: what `multiprocessing` starts is patched, or it is loud."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from worksite import ARMED, PATCHED, PLAIN, Venv

SCRIPT = str(Path(__file__).parent / "spawning.py")
PACK = {name: value for name, value in ARMED.items() if name != "OVERLAY"}
STARTED = {f"{kind} {method}" for kind in ("in_process", "pool") for method in ("spawn", "forkserver")}


OTHER = f"""
import multiprocessing, sys

sys.path.insert(0, {str(Path(__file__).parent)!r})
multiprocessing.set_executable({sys.executable!r})
from probe import in_process

{{}}
print(in_process("spawn"))
"""


SPAWNS = """
import multiprocessing, sys
import fakeup.core

def work(*_):
    print(fakeup.core.scale(3))

if __name__ == "__main__":
    made = [multiprocessing.get_context(sys.argv[1]).Process(target=work) for _ in range(2)]
    work()
    for each in made:
        each.start()
        each.join()
"""


def found_by(done: Any) -> dict[str, int]:
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("environment kept")
    return found


@pytest.mark.parametrize("strict", [(), ("strict",)])
def test_what_multiprocessing_starts_is_patched_until_disable(
    worksite: Venv, strict: tuple[str, ...]
) -> None:
    # Python hands a filter on to its children, and this one names the tracker, which is left unpatched.
    filters = ("-W", "ignore", "-W", "ignore::UserWarning:multiprocessing.resource_tracker")
    found = found_by(worksite.run(*filters, SCRIPT, "threads", *strict, **PACK))
    assert found.pop("after disable") == int(PLAIN)
    assert found.pop("alive after disable") == int(PATCHED)  # and still there
    assert found == dict.fromkeys({*STARTED, "threads"}, int(PATCHED))


def test_a_driver_that_says_no_is_respected(worksite: Venv) -> None:
    done = worksite.run("-W", "ignore", SCRIPT, **PACK, OVERLAY="0")
    assert set(found_by(done).values()) == {int(PLAIN)}
    assert done.stderr.count("spawned processes are not patched, because of OVERLAY=0") == 1


def test_disable_says_that_new_processes_are_patched_where_the_environment_asks_for_it(
    worksite: Venv,
) -> None:
    done = worksite.run("-W", "ignore", SCRIPT, **PACK, OVERLAY="1")
    assert found_by(done)["after disable"] == int(PATCHED)
    assert done.stderr.count("OVERLAY is set: new processes are patched") == 1


def test_disable_says_so_too_where_only_the_environment_enabled(worksite: Venv) -> None:
    done = worksite.run("-c", "import overlay; overlay.disable()", **PACK, OVERLAY="1")
    assert done.stderr.count("OVERLAY is set: new processes are patched") == 1


def test_disable_replaces_a_fork_server_where_only_the_environment_enabled(worksite: Venv) -> None:
    asks = "print(in_process('forkserver'))"
    code = f"import os, sys, overlay; sys.path.insert(0, {str(Path(SCRIPT).parent)!r}); "
    code += f"from probe import in_process; {asks}; overlay.disable(); os.environ['OVERLAY'] = '0'; {asks}"
    done = worksite.run("-c", code, **PACK, OVERLAY="1")
    assert done.stdout.split() == [str(int(PATCHED)), str(int(PLAIN))], done.stderr


def test_a_program_that_takes_variables_away_starts_patched_processes(worksite: Venv) -> None:
    """As one that makes its environment anew. Who means no says OVERLAY=0."""
    code = f"import os, sys; sys.path.insert(0, {str(Path(SCRIPT).parent)!r}); from probe import in_process; "
    code += "import fakeup.core; del os.environ['OVERLAY'], os.environ['OVERLAY_PACKS']; "
    code += "print(*map(in_process, ('spawn', 'forkserver')), 'OVERLAY' in os.environ)"
    done = worksite.run("-c", code, **PACK, OVERLAY="1")
    assert done.stdout.split() == [str(int(PATCHED)), str(int(PATCHED)), "False"], done.stderr


def test_a_pool_whose_processes_would_stop_at_their_start_is_not_made(worksite: Venv, tmp_path: Path) -> None:
    """`Pool` starts them again for ever."""
    file = str(tmp_path / "overlay.lock")
    worksite.read("lock", "--file", file, **PACK)
    code = f"import multiprocessing, os, fakeup.core; os.remove({file!r})\n"
    code += "try: multiprocessing.get_context('spawn').Pool(1)\nexcept Exception as error: print(error)"
    done = worksite.run("-c", code, **PACK, OVERLAY="1", OVERLAY_PIN=file)
    assert f"there is no lock {file}" in done.stdout, done.stderr
    whats = {"OVERLAY_LOG": "OVERLAY_LOG='loud'", "OVERLAY_PATCHES": "'loud' names no patch"}
    for (name, what), strict in product(whats.items(), "01"):
        made = code.replace(f"os.remove({file!r})", f"os.environ[{name!r}] = 'loud'")
        done = worksite.run("-c", made, **PACK, OVERLAY="1", OVERLAY_STRICT=strict)
        said = done.stdout if strict == "1" else done.stderr
        assert what in said, (done.stdout, done.stderr)
        assert strict == "1" or "What to do: correct that setting" in said


def test_a_selection_that_enable_was_given_holds_whatever_the_environment_says(worksite: Venv) -> None:
    code = f"import overlay, sys; sys.path.insert(0, {str(Path(SCRIPT).parent)!r}); "
    code += "overlay.enable('acme/*', strict=True); from probe import in_process; print(in_process('spawn'))"
    done = worksite.run("-c", code, OVERLAY_PACKS="acme", OVERLAY_PATCHES="no.such")
    assert done.stdout.split() == [str(int(PATCHED))], done.stderr


def test_what_is_spawned_does_not_say_the_configuration_again(worksite: Venv, tmp_path: Path) -> None:
    """It imports the script, and so the upstream, before it knows its parent."""
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS)
    for method in ("spawn", "forkserver"):
        done = worksite.run(str(script), method, **PACK, OVERLAY="1")
        assert (done.stdout, done.stderr.count("overlay: configuration: ")) == ("600\n" * 3, 1), done.stderr


@pytest.mark.parametrize(
    ("method", "size", "who"),
    [("fork", 2, "2 processes"), ("spawn", 2, "2 processes"), ("fork", 1, "1 process")],
)
def test_processes_that_run_already_are_heard_of(worksite: Venv, method: str, size: int, who: str) -> None:
    pool = f"import multiprocessing, os, overlay; p = multiprocessing.get_context('{method}').Pool({size})"
    enabled = "overlay.enable(strict=True)"
    for call, code in (("enable", f"{pool}; {enabled}"), ("disable", f"import overlay; {enabled}; {pool}")):
        done = worksite.run("-c", f"{code}; overlay.disable()" if call == "disable" else code, **PACK)
        said = f"overlay.{call}() does not reach {who} running here: no patch comes or goes there"
        assert done.stderr.count(said) == done.stderr.count("running here") == 1, done.stderr
    fork = "child = os.fork(); child or (overlay.enable(), os._exit(7)); print(os.waitpid(child, 0)[1] >> 8)"
    for code in (f"import overlay; overlay.enable(strict=True); {pool}; print(7)", f"{pool}; {fork}"):
        done = worksite.run("-c", code, **PACK)
        assert (done.stdout, "running here" in done.stderr) == ("7\n", False), done.stderr


@pytest.mark.parametrize("more", [[], ["armed"]])
def test_a_fork_server_from_before_is_replaced(worksite: Venv, more: list[str]) -> None:
    found = found_by(worksite.run("-W", "ignore", SCRIPT, "early", *more, "strict", **PACK))
    assert found["in_process forkserver"] == int(PATCHED)
    assert found["after disable"] == int(PATCHED if more else PLAIN)


def test_a_fork_server_that_cannot_be_replaced_is_loud(worksite: Venv) -> None:
    done = worksite.run("-W", "ignore", SCRIPT, "odd", **PACK)
    assert found_by(done)["after disable"] == int(PLAIN)
    assert done.stderr.count("its fork server was started before overlay.enable()") == 1
    assert done.stderr.count("its fork server cannot be replaced, and goes on making patched processes") == 1
    done = worksite.run("-W", "ignore", SCRIPT, "odd", "strict", **PACK)
    assert "WorkersError: multiprocessing: processes that it starts run without patches" in done.stderr
    assert done.returncode == 1


def test_where_no_process_is_armed_it_is_loud(worksite: Venv, tmp_path: Path) -> None:
    hidden = worksite.site / "overlay-startup.pth"
    kept = hidden.rename(tmp_path / "overlay-startup.pth")
    try:
        done = worksite.run("-W", "ignore", SCRIPT, **PACK)
        strict = worksite.run("-W", "ignore", SCRIPT, "strict", **PACK)
    finally:
        kept.rename(hidden)
    assert set(found_by(done).values()) == {int(PLAIN)}
    assert done.stderr.count("run without patches: overlay is not enabled at their start, as ") == 1
    assert strict.returncode == 1
    assert "WorkersError: multiprocessing: " in strict.stderr
    assert "What to do: see to it that they read the start-up file, as `overlay doctor` says" in strict.stderr


@pytest.mark.parametrize(
    ("enabled", "environ"), [("import overlay; overlay.enable()", PACK), ("", ARMED)], ids=["enable", "armed"]
)
def test_another_python_that_is_not_armed_is_loud(
    worksite: Venv, enabled: str, environ: dict[str, str]
) -> None:
    done = worksite.run("-c", OTHER.format(enabled), **environ)
    assert done.stdout == f"{PLAIN}\n", done.stderr
    assert done.stderr.count(f"{sys.executable} is a different Python, without overlay") == 1
    strict = worksite.run("-c", OTHER.format(enabled), **environ, OVERLAY_STRICT="1")
    assert "WorkersError: multiprocessing: processes that it starts run without patches" in strict.stderr
    assert strict.returncode == 1
