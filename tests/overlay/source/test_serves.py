"""A target that is changed for another project's sake alone."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest
from decide_cases import FILES, OTHER, PROJECT, look, patch, variant
from fake_upstream import MemoryTree, tables, write_files
from fake_upstream import tested as note

from overlay.patch import Patch, Target, replaced
from overlay.patch import variant as variant_of
from overlay.runtime.engine import Engine
from overlay.source.decide import decide
from overlay.source.registry import load_patches
from overlay.source.source import InstalledTree
from overlay.source.table import Row, Table

if TYPE_CHECKING:
    from pathlib import Path

    from fake_upstream import Upstream

    from overlay.verdict import Verdict

HOME = "def h():\n    pass\n"
#: An `other` that does without it.
WENT = "x = 1\n"


def serving() -> Patch:
    """Return a patch of `lib`, for the sake of `other` 1."""
    client = Target(
        project=OTHER, optional=True, variants=(variant(name="o", site="other:h"),), tells=("other:x",)
    )
    return patch(others=(client,)).replace(
        targets=(Target(project=PROJECT, variants=(variant(),), serves="other"), client)
    )


def there(version: str = "1.0", home: str = HOME, **files: str) -> MemoryTree:
    return MemoryTree({**FILES, "other/__init__.py": home, "other/VERSION": version, **files})


def decided(source: MemoryTree) -> Verdict:
    """Decide on it as tested on one `other`, and as needless on a later one."""
    sites = {site: there("2.0", WENT).digest(site) for site in ("other:h", "other:x")}
    went = Row(patch="lib.f", target="other", verdict="not-needed", evidence="it went", sites=sites)
    return look(serving(), source, went, on=there())


def test_whom_it_serves_is_not_there() -> None:
    verdict = decided(MemoryTree(FILES))
    assert verdict.verdict == "not-needed"
    assert verdict.reason == "it serves other alone, which is not installed"
    assert verdict.where() == "lib 1.2.0"
    assert not verdict.loud


def test_whom_it_serves_needs_nothing() -> None:
    verdict = decided(there("2.0", WENT))
    assert verdict.verdict == "not-needed"
    assert verdict.reason == "it serves other alone, and other 2.0 needs nothing: it went"


@pytest.mark.parametrize(
    "files", [{"lib/core.py": "def f(x):\n    return -x\n"}, {"lib/core.py": "def f(:\n"}]
)
def test_whatever_the_served_target_is_made_on(files: dict[str, str]) -> None:
    assert decided(MemoryTree({**FILES, **files})).verdict == "not-needed"
    assert decided(there(**files)).verdict == "unknown-source"


def test_whom_it_serves_is_unknown_which_is_loud() -> None:
    verdict = decided(there(home="def h():\n    return 1\n"))
    assert verdict.verdict == "unknown-source"
    assert verdict.reason.startswith("other ")
    alone = MemoryTree({"other/__init__.py": HOME, "other/VERSION": "1"})
    assert decided(alone).verdict == "not-installed"
    assert decided(there()).verdict == "apply"


def test_it_is_left_out_until_the_one_it_serves_is_there(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the order in which a worker gets it: Megatron, a folder more on the path, verl."""
    home = tmp_path / "later"
    files = {"other/__init__.py": "def h():\n    return 'theirs'\n", "other/VERSION": "1.0"}
    write_files(home, files)
    wanted = variant_of("o", replaced("other:h", lambda _original, _module: lambda: "ours"))
    client = Target(project=OTHER, variants=(wanted,), optional=True)
    made = upstream.patch(others=(client,))
    note(made, InstalledTree([str(upstream.root), str(home)]))
    made = made.replace(targets=(made.targets[0].replace(serves="other"), *made.targets[1:]))
    engine = Engine(lambda: {made.id: made}, table=tables())
    try:
        engine.enable("all", strict=True)
        assert upstream.load().scale(1) == 2
        (status,) = engine.status().patches
        assert (status.state, status.verdict.verdict if status.verdict else "") == ("skipped", "not-needed")
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
        assert decide(subject, MemoryTree(files), Table([])).verdict == "not-needed"
