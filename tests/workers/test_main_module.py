"""A module that is run instead of imported, as launchers do it: `python -m X`, `torchrun path/to/x.py`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from worksite import PACK, Venv

#: What an upstream's trainer may look like: it is run, and says what came of it.
TRAINER = '''
"""Trains."""
from __future__ import annotations

import json
import sys

from fakeup.core import scale


def loss(value):
    return value + 1


class Trainer:
    def fit(self, value):
        return loss(value)


def again():
    import fakeup.train as imported
    return imported.Trainer().fit(1)


def imports():
    import colorsys


def ledger():
    overlay = sys.modules.get("overlay")
    if overlay is None:
        return []
    (status,) = [one for one in overlay.status().patches if one.patch == "trains/fakeup.train"]
    return [status.state, [site.state for site in status.sites]]


def answer(pipe):
    pipe.send(Trainer().fit(1))


def spawned():
    from multiprocessing import get_context
    context = get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=answer, args=(other,))
    process.start()
    other.close()
    return mine.recv()


def main(fit=Trainer.fit):
    import pickle
    same = pickle.loads(pickle.dumps([loss, Trainer.fit])) == [loss, Trainer.fit]
    found = {"fit": fit(Trainer(), 1), "argv": sys.argv[1:], "path": sys.path[0], "same": same}
    spec = getattr(__spec__, "name", None)
    found |= {"spec": spec, "package": __package__, "loader": type(__loader__).__name__, "file": __file__}
    found |= {"ledger": ledger(), "again": again() if "again" in sys.argv else None}
    found["after"] = ledger()
    found["spawned"] = spawned() if "spawn" in sys.argv else None
    print(json.dumps(found))
    if "raise" in sys.argv:
        raise RuntimeError("of the trainer")


if __name__ == "__main__":
    main()
'''

PATCH = """
from acme_overlay.patches.fakeup.scale import PROJECT
from overlay.patch import Patch, one_target, replaced, variant

def make_loss(original, module):
    def loss(value):
        return original(value) * 100
    return loss

def make_fit(original, module):
    def fit(self, value):
        return original(self, value) + 7
    return fit

VARIANT = variant(
    "1", replaced("fakeup.train:loss", make_loss), replaced("fakeup.train:Trainer.fit", make_fit),
    "fakeup.train:again",
)
PATCH = Patch(
    id="trains/fakeup.train",
    summary="Train rightly",
    why="Because.",
    upstream=("fake/up#2",),
    targets=one_target(PROJECT, VARIANT),
)
"""
ENVIRON = {"OVERLAY": "1", "OVERLAY_PACKS": "trains", "OVERLAY_PATCHES": "trains/*"}
STRICT = {**ENVIRON, "OVERLAY_STRICT": "1"}
PLAIN, PATCHED = 2, 207
APPLIED = ["applied", ["applied", "applied"]]


@pytest.fixture(scope="module")
def site(worksite: Venv) -> Iterator[Venv]:
    """Return the worksite with a trainer, and a pack that patches it, which other tests do not find there."""
    worksite.write({"fakeup/train.py": TRAINER})
    names = {name: source for name, source in PACK.items() if name.endswith("__init__.py")}
    worksite.write({name.replace("acme_", "trains_"): source for name, source in names.items()})
    worksite.write({"trains_overlay/patches/fakeup/train.py": PATCH})
    worksite.add_table("trains_overlay.patches.fakeup", "train")
    worksite.add_distribution("trains-overlay", "1", "[overlay.patches]\ntrains = trains_overlay.patches\n")
    yield worksite
    for folder in worksite.site.glob("trains_overlay*"):
        shutil.rmtree(folder)


def script(site: Venv) -> str:
    return str(site.site / "fakeup" / "train.py")


def found(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    made: dict[str, object] = json.loads(lines[0])  # a debugger begins again
    return made


LAUNCHER = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "--master-port", "0"]
#: Ways to run the trainer; {} is its path.
FORMS = {
    "module": ["-m", "fakeup.train"],
    "script": ["{}"],
    "script, optimised": ["-O", "{}"],
    "script, safe path": ["-I", "{}"],
    "torchrun module": [*LAUNCHER, "-m", "fakeup.train"],
    "torchrun script": [*LAUNCHER, "{}"],
    "torchrun in process": [*LAUNCHER, "--run-path", "{}"],
    "run_path": ["-c", "import runpy; runpy.run_path('{}', run_name='__main__')"],
    "run_module": ["-c", "import runpy; runpy.run_module('fakeup.train', None, '__main__', True)"],
    "debugger": ["-m", "pdb", "-c", "continue", "-c", "quit", "-m", "fakeup.train"],
}


def words(site: Venv, form: list[str]) -> list[str]:
    return [word.replace("{}", script(site)) for word in form]


@pytest.mark.parametrize("form", FORMS)
def test_what_runs_is_patched_as_on_an_import(site: Venv, form: str) -> None:
    command = words(site, FORMS[form])
    patched = found(site.run(*command, **STRICT))
    assert (patched["fit"], patched["ledger"], patched["same"]) == (PATCHED, APPLIED, True)
    # All else is as it was.
    plain = found(site.run(*command))
    assert plain["fit"] == PLAIN
    ledgers = {"ledger": APPLIED, "after": APPLIED}
    expected = {**plain, "fit": PATCHED, **ledgers}
    assert patched == expected


def test_both_copies_are_patched_when_it_is_imported_as_well(site: Venv) -> None:
    made = found(site.run("-m", "fakeup.train", "again", **STRICT))
    assert (made["fit"], made["again"], made["ledger"], made["after"]) == (PATCHED, PATCHED, APPLIED, APPLIED)


def test_what_was_imported_before_it_is_run_is_patched_too(site: Venv, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import fakeup.train")
    made = found(site.run("-W", "ignore", "-m", "fakeup.train", "again", PYTHONPATH=str(tmp_path), **STRICT))
    assert (made["fit"], made["again"], made["ledger"], made["after"]) == (PATCHED, PATCHED, APPLIED, APPLIED)


def test_a_package_that_imports_it_keeps_no_copy_out(site: Venv) -> None:
    package = site.site / "fakeup/__init__.py"
    before = package.read_text()
    package.write_text(f"{before}\nfrom fakeup import train\n")
    try:
        made = found(site.run("-W", "ignore", "-m", "fakeup.train", "spawn", **STRICT))
    finally:
        package.write_text(before)
    assert (made["fit"], made["spawned"]) == (PATCHED, PATCHED)


def test_overlay_run_and_a_pin_hold_it(site: Venv, tmp_path: Path) -> None:
    overlay = str(site.python.parent / "overlay")
    lock = str(tmp_path / "overlay.lock")
    done = site.run(overlay, "lock", "--file", lock, **ENVIRON)
    assert done.returncode == 0, done.stdout + done.stderr
    for form in ("module", "script"):
        command = [overlay, "run", "--strict", "--pin", lock, "--", str(site.python)]
        command += words(site, FORMS[form])
        assert found(site.run(*command, **site.on_path()))["fit"] == PATCHED


def test_a_traceback_is_that_of_the_trainer(site: Venv) -> None:
    for form in ("module", "script"):
        command = [*words(site, FORMS[form]), "raise"]
        plain, patched = site.run(*command), site.run(*command, **STRICT)
        assert plain.returncode == patched.returncode == 1
        frames = [line for line in plain.stderr.splitlines() if "train.py" in line]
        assert frames
        assert [line for line in patched.stderr.splitlines() if "train.py" in line] == frames


OWN = (
    "import sys, types; main = types.ModuleType('__main__'); main.__file__ = path = sys.argv[1]; "
    "sys.modules['__main__'] = main; exec(compile(open(path).read(), path, 'exec'), vars(main))"
)
UNREACHABLE = {
    "a debugger of scripts": ["-m", "pdb", "-c", "continue", "-c", "quit", "{}"],
    "a profiler of modules": ["-m", "cProfile", "-m", "fakeup.train"],
    "a profiler of scripts": ["-m", "cProfile", "{}"],
    "code of one's own": ["-c", OWN, "{}"],
    "run_module": ["-c", "import runpy; runpy.run_module('fakeup.train', None, '__main__')"],
    "compiled": ["{}c"],
}


@pytest.mark.parametrize("form", UNREACHABLE)
def test_what_cannot_be_patched_is_loud_and_an_error_in_strict_mode(site: Venv, form: str) -> None:
    command = words(site, UNREACHABLE[form])
    if form == "compiled":
        site.run("-m", "compileall", "-b", script(site))
    done = site.run(*command, **ENVIRON)
    assert "NOT applied trains/fakeup.train" in done.stderr, done.stderr
    assert "fakeup.train" in done.stderr
    assert "run_module" not in form or "without alter_sys=True" in done.stderr
    strict = site.run(*command, **STRICT)
    Path(f"{script(site)}c").unlink(missing_ok=True)
    assert '"fit": 2' not in strict.stdout, strict.stdout
    assert "strict mode" in strict.stdout + strict.stderr


def test_a_function_of_a_script_that_came_pickled_runs_no_script(site: Venv) -> None:
    """Ray brings it with globals of its own, which are those of `__main__` by name."""
    function = "def ask():\\n import colorsys\\n import fakeup.train as t\\n return t.Trainer().fit(1)"
    code = (
        "import sys, fakeup.train; space = {'__name__': '__main__', '__file__': sys.argv[1]}; "
        f"exec('{function}', space); print(space['ask']())"
    )
    done = site.run("-c", code, script(site), **STRICT)
    assert done.stdout.split() == [str(PATCHED)], done.stderr


SENT = """
import cloudpickle, runpy, sys
sys.argv = ["x"]
made = runpy.run_module("fakeup.train", None, "__main__", True)
sys.modules["__main__"].__dict__.update(made)
open("sent.pickle", "wb").write(cloudpickle.dumps((made["Trainer"], made["again"])))
open("other.pickle", "wb").write(cloudpickle.dumps(made["imports"]))
"""


@pytest.mark.parametrize("environ", [{}, STRICT], ids=["plain", "patched"])
def test_what_an_unpatched_process_sends_by_value_is_loud(
    site: Venv, tmp_path: Path, environ: dict[str, str]
) -> None:
    """As a launcher that runs a trainer's file, and pickles it for jobs on other machines."""
    pytest.importorskip("cloudpickle")
    names = ("sent.pickle", "other.pickle")
    send = SENT.replace(names[0], str(tmp_path / names[0])).replace(names[1], str(tmp_path / names[1]))
    sends = site.run("-c", send, **environ)
    assert sends.returncode == 0, sends.stderr
    code = f"import pickle; T, again = pickle.load(open({str(tmp_path / 'sent.pickle')!r}, 'rb')); "
    # Each that comes has a namespace of its own, and that of one which is well says nothing of the next.
    code = f"import pickle; pickle.load(open({str(tmp_path / 'other.pickle')!r}, 'rb'))(); {code}"
    code += "print(again(), T().fit(1))"
    if environ:
        assert site.run("-c", code, **STRICT).stdout.split() == [str(PATCHED)] * 2
        return
    said = "half-patched: fakeup.train:Trainer.fit came here pickled by a process that is not patched: "
    loose, strict = site.run("-c", code, **ENVIRON), site.run("-c", code, **STRICT)
    assert (loose.stdout.split(), loose.stderr.count(said)) == ([str(PATCHED), str(PLAIN)], 1), loose.stderr
    assert (strict.returncode, f"PatchError: {said}" in strict.stderr) == (1, True), strict.stderr


#: A trainer that enables overlay by itself, and one that starts a process which runs it again.
ENABLED = """
if __name__ == "__main__":
    import overlay
    overlay.enable("trains/*", strict=True)
    main()
"""
EARLY = "import overlay\noverlay.enable('trains/*', strict={strict})\n"


def variant_of(site: Venv, folder: Path, *, early: str = "", late: str = "") -> str:
    """Write the trainer with other words at its start or end as in a checkout; return the path."""
    text = TRAINER.replace("import json\n", f"{early}import json\n", 1)
    if late:
        text = text[: text.index("if __name__")] + late
    path = folder / "fakeup" / "train.py"
    path.parent.mkdir()
    path.write_text(text)
    return str(path)


def test_a_trainer_can_enable_overlay_below_what_it_defines(site: Venv, tmp_path: Path) -> None:
    path = variant_of(site, tmp_path, late=ENABLED)
    assert found(site.run(path, OVERLAY_PACKS="trains"))["fit"] == PATCHED


def test_a_trainer_that_enables_overlay_above_it_is_told(site: Venv, tmp_path: Path) -> None:
    path = variant_of(site, tmp_path, early=EARLY.format(strict=False))
    done = site.run(path, OVERLAY_PACKS="trains")
    assert found(done)["fit"] == PLAIN
    assert "NOT applied trains/fakeup.train" in done.stderr
    assert "call overlay.enable() below it all" in done.stderr
    (tmp_path / "strict").mkdir()
    strict = site.run(
        variant_of(site, tmp_path / "strict", early=EARLY.format(strict=True)), OVERLAY_PACKS="trains"
    )
    assert strict.returncode == 1
    assert "PatchError" in strict.stderr


AGAIN = """
import overlay, runpy, sys
path = sys.argv.pop()
for _ in range(2):
    overlay.enable("trains/*", strict=True)
    runpy.run_path(path, run_name="__main__")
    overlay.disable()
runpy.run_path(path, run_name="__main__")
"""


def test_a_script_is_patched_again_when_overlay_is_enabled_again(site: Venv) -> None:
    done = site.run("-c", AGAIN, script(site), OVERLAY_PACKS="trains")
    assert done.returncode == 0, done.stderr
    fits = [json.loads(line)["fit"] for line in done.stdout.splitlines() if line.startswith("{")]
    assert fits == [PATCHED, PATCHED, PLAIN]


SPAWNS = """
def in_child(queue):
    queue.put([Trainer().fit(1), loss(1), ledger()])

def undone():
    import overlay
    overlay.disable()
    return Trainer().fit(1), loss(1), loss.__module__

if __name__ == "__main__":
    import multiprocessing
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    print(json.dumps({"child": queue.get(timeout=60), "fit": Trainer().fit(1), "undone": undone()}))
    child.join()
"""


def test_a_spawned_process_is_patched_too_and_all_can_be_undone(site: Venv, tmp_path: Path) -> None:
    path = variant_of(site, tmp_path, late=SPAWNS)
    made = found(site.run(path, **STRICT))
    assert made["child"] == [PATCHED, 200, APPLIED]
    assert (made["fit"], made["undone"]) == (PATCHED, [PLAIN, PLAIN, "__main__"])


def test_a_trainer_of_another_source_is_refused(site: Venv, tmp_path: Path) -> None:
    path = variant_of(site, tmp_path)
    text = (tmp_path / "fakeup" / "train.py").read_text()
    # One is replaced, and the other is relied on.
    for old, new, name in (("value + 1", "value + 2", "loss"), (".fit(1)", ".fit(2)", "again")):
        Path(path).write_text(text.replace(old, new))
        done = site.run(path, **ENVIRON)
        assert found(done)["fit"] == PLAIN + (name == "loss")
        assert (
            f"NOT applied trains/fakeup.train to fakeup 1.2.0: conflict: fakeup.train:{name} is "
            in done.stderr
        )
        assert "another one in the script that is run" in done.stderr
        assert site.run(path, **STRICT).returncode == 1
