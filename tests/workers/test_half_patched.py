"""Workers that are patched by halves: a class came to them pickled, and its module did not."""

from __future__ import annotations

from pathlib import Path

import pytest
from worksite import ARMED, Venv

pytest.importorskip("cloudpickle")

#: Pickles the patched class by value, as Ray does with what it cannot find by name.
SEND = """
import sys, cloudpickle, fakeup.core
cloudpickle.register_pickle_by_value(fakeup.core)
open(sys.argv[1], "wb").write(cloudpickle.dumps(fakeup.core.Engine))
"""
#: `Engine.run` adds 1 where it is patched, and calls `scale`, which then multiplies by 100.
RECEIVE = """
import pickle, sys
cls = pickle.load(open(sys.argv[1], "rb"))
import overlay
{before}
print(cls().run(1), *overlay.status().half_patched, sep="\\n")
"""


@pytest.fixture(scope="module")
def sent(worksite: Venv, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a class that a patched process has pickled."""
    path = tmp_path_factory.mktemp("sent") / "class.pickle"
    done = worksite.run("-W", "ignore", "-c", SEND, str(path), **ARMED)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("before", ["", "overlay.enable(); overlay.disable()"])
def test_a_process_that_is_not_patched_says_so(worksite: Venv, sent: Path, before: str) -> None:
    settings = {**ARMED, "OVERLAY": "0"}
    done = worksite.run("-c", RECEIVE.format(before=before), str(sent), **settings)
    _, *sentences = done.stdout.splitlines()
    assert len(sentences) == 2, done.stderr
    for site in ("scale", "Engine.run"):
        what = f"fakeup.core:{site} of acme/fakeup.scale"
        assert what in sentences
        begin = f"overlay: half-patched: {what} "
        (said,) = [line for line in done.stderr.splitlines() if line.startswith(begin)]
        assert said.endswith("here that patch is not selected or not enabled")


def test_a_process_that_is_patched_is_whole(worksite: Venv, sent: Path) -> None:
    done = worksite.run("-c", RECEIVE.format(before="import fakeup.core"), str(sent), **ARMED)
    assert done.stdout.splitlines() == ["201"], done.stderr
    assert "half-patched" not in done.stderr


def test_a_wrapper_around_a_patched_function_leaves_it_whole(worksite: Venv, sent: Path) -> None:
    """It calls the replacement, so the patch is in force."""
    wrap = (
        "import fakeup.core as core, functools; plain = core.scale; "
        "core.scale = functools.wraps(plain)(lambda *given: plain(*given))"
    )
    code = f"{wrap}\n{RECEIVE.format(before='')}"
    done = worksite.run("-c", code, str(sent), **ARMED, OVERLAY_STRICT="1")
    assert done.stdout.splitlines() == ["201"], done.stderr
    assert "half-patched" not in done.stderr


AGAIN = """
import cloudpickle, pickle
import fakeup.core as core
import overlay
cloudpickle.register_pickle_by_value(core)
for _ in range(3):
    one = pickle.loads(cloudpickle.dumps(core.Engine()))
    assert type(one) is core.Engine
    print(one.run(1), overlay.status().patches[0].state)
overlay.disable()
print(core.Engine().run(1), overlay.status().patches[0].state)
"""


def test_a_class_that_comes_back_by_value_leaves_it_whole(worksite: Venv) -> None:
    """Cloudpickle gives the class that is there copies of its methods."""
    done = worksite.run("-c", AGAIN, **ARMED, OVERLAY_STRICT="1")
    assert done.stdout.splitlines() == ["201 applied"] * 3 + ["2 reverted"], done.stderr
    assert "lost" not in done.stderr
    assert "left behind" not in done.stderr


def test_a_process_that_becomes_patched_is_whole_then(worksite: Venv, sent: Path) -> None:
    code = RECEIVE.format(before="overlay.enable()")
    done = worksite.run("-c", code, str(sent), **{**ARMED, "OVERLAY": "0"})
    assert len(done.stdout.splitlines()) == 1
    assert "half-patched" in done.stderr  # when it arrived, that was so


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_strict_process_that_leaves_the_patch_out_refuses(worksite: Venv, sent: Path, strict: str) -> None:
    settings = {**ARMED, "OVERLAY_PATCHES": "none", "OVERLAY_STRICT": strict}
    done = worksite.run("-c", RECEIVE.format(before=""), str(sent), **settings)
    assert done.returncode == int(strict)
    assert ("PatchError: half-patched: fakeup.core:" in done.stderr) is (strict == "1")
