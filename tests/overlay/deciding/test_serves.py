"""A target that is changed for another project's sake alone."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest
from decide_cases import FILES, OTHER, PROJECT, known, patch, variant
from fake_upstream import MemoryTree, write_files

from overlay.catalogue.registry import load_patches
from overlay.deciding.decide import decide
from overlay.enabling.engine import Engine
from overlay.patch import Absent, Patch, Replacement, Target

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import Upstream

HOME = "def h():\n    pass\n"


def serving() -> Patch:
    """Return a patch of `lib`, for the sake of `other` 1."""
    shape = (known("other:h", {"other/__init__.py": HOME}),)
    client = Target(
        project=OTHER,
        optional=True,
        variants=(
            variant(name="o", site="other:h", versions=">=1,<2", shape=shape),
            variant(
                name="p",
                versions=">=2",
                verdict="superseded",
                shape=(Absent(site="other:h"),),
                reason="it went",
            ),
        ),
    )
    return patch(others=(client,)).replace(
        targets=(Target(project=PROJECT, variants=(variant(),), serves="other"), client)
    )


def there(version: str = "1.0", home: str = HOME, **files: str) -> MemoryTree:
    return MemoryTree({**FILES, "other/__init__.py": home, "other/VERSION": version, **files})


def test_whom_it_serves_is_not_there() -> None:
    verdict = decide(serving(), MemoryTree(FILES))
    assert verdict.verdict == "not-affected"
    assert verdict.reason == "it serves other alone, which is not installed"
    assert verdict.where() == "lib 1.2.0"
    assert not verdict.loud


def test_whom_it_serves_needs_nothing() -> None:
    verdict = decide(serving(), there("2.0", "x = 1\n"))
    assert verdict.verdict == "not-affected"
    assert verdict.reason == "it serves other alone, and other 2.0 needs nothing: it went"


@pytest.mark.parametrize(
    "files",
    [
        {"lib/core.py": "def f(x):\n    return -x\n"},
        {"lib/core.py": "def f(:\n"},
        {"lib/VERSION": "9.0"},
        {"lib/VERSION": "what"},
    ],
)
def test_whatever_the_served_target_is_made_on(files: dict[str, str]) -> None:
    assert decide(serving(), MemoryTree({**FILES, **files})).verdict == "not-affected"
    assert decide(serving(), there(**files)).verdict != "not-affected"


def test_whom_it_serves_is_unknown_which_is_loud() -> None:
    for tree in (there(home="def h():\n    return 1\n"), there("0.5"), there("")):
        verdict = decide(serving(), tree)
        assert verdict.verdict == "unsupported"
        assert verdict.reason.startswith("other ")
    assert (
        decide(serving(), MemoryTree({"other/__init__.py": HOME, "other/VERSION": "1"})).verdict
        == "not-installed"
    )
    assert decide(serving(), there()).verdict == "apply"


def test_it_is_left_out_until_the_one_it_serves_is_there(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the order in which a worker gets it: Megatron, a folder more on the path, verl."""
    home = tmp_path / "later"
    files = {"other/__init__.py": "def h():\n    return 'theirs'\n", "other/VERSION": "1.0"}
    write_files(home, files)
    ours = Replacement(site="other:h", make=lambda _original, _module: lambda: "ours")
    wanted = variant(name="o", shape=(known("other:h", files),), replacements=(ours,))
    client = Target(project=OTHER, variants=(wanted,), optional=True)
    made = upstream.patch(others=(client,))
    made = made.replace(targets=(made.targets[0].replace(serves="other"), *made.targets[1:]))
    engine = Engine(lambda: {made.id: made})
    try:
        engine.enable("all", strict=True)
        assert upstream.load().scale(1) == 2
        (status,) = engine.status().patches
        assert (status.state, status.verdict.verdict if status.verdict else "") == ("skipped", "not-affected")
        monkeypatch.syspath_prepend(str(home))
        assert importlib.import_module("other").h() == "ours"
        assert upstream.load().scale(1) == 200
        assert engine.status().patches[0].state == "applied"
    finally:
        engine.disable()
        __import__("sys").modules.pop("other", None)
    assert "NOT applied" not in capfd.readouterr().err


def test_what_megatron_is_asked_by_verl_alone() -> None:
    subject = load_patches()["megatron.dynamic-cp-names"]
    for version in ("0.14.0", "0.16.0rc0", "0.16.1", "0.20.0", "?"):
        files = {
            "megatron/core/package_info.py": f"MAJOR, x = 0, 1\nMAJOR = '{version}'\n",
            "megatron/core/parallel_state.py": "def initialize_model_parallel(): pass\n",
        }
        assert decide(subject, MemoryTree(files)).verdict == "not-affected"
