"""A target that is changed for another project's sake alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from decide_cases import FILES, OTHER, PROJECT, look, patch, variant
from fake_upstream import MemoryTree, Upstream, tables, write_files
from fake_upstream import tested as note

from overlay.errors import PatchError
from overlay.patch import Patch, Target, replaced
from overlay.patch import variant as variant_of
from overlay.runtime.engine import Engine
from overlay.source.source import Tree
from overlay.source.table import Row
from overlay.verdict import Verdict

HOME = "def h():\n    pass\n"
#: An `other` that does without it.
WENT = "x = 1\n"


def _ours(_original: object, _module: object) -> Callable[[], str]:
    return lambda: "ours"


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


def test_it_follows_the_one_that_it_serves() -> None:
    absent = decided(MemoryTree(FILES))
    assert absent.reason == "it serves other alone, which is not installed"
    assert (absent.verdict, absent.loud, absent.where()) == ("not-needed", False, "lib 1.2.0")
    went = decided(there("2.0", WENT))
    assert went.verdict == "not-needed"
    assert went.reason == "it serves other alone, and other 2.0 needs nothing: it went"
    changed = decided(there(home="def h():\n    return 1\n"))
    assert changed.verdict == "unknown-source"
    assert changed.reason.startswith("other ")
    alone = MemoryTree({"other/__init__.py": HOME, "other/VERSION": "1"})
    assert decided(alone).verdict == "not-installed"
    assert decided(there()).verdict == "apply"


@pytest.mark.parametrize("core", ["def f(x):\n    return -x\n", "def f(:\n"])
def test_its_own_source_counts_where_the_one_it_serves_is(core: str) -> None:
    assert decided(MemoryTree({**FILES, "lib/core.py": core})).verdict == "not-needed"
    assert decided(there(**{"lib/core.py": core})).verdict == "unknown-source"


def test_a_strict_job_of_its_own_project_goes_on_where_the_one_it_serves_is_only_installed(
    upstream: Upstream, capfd: pytest.CaptureFixture[str]
) -> None:
    files = {"other/__init__.py": "def h():\n    return 'theirs'\n", "other/VERSION": "1.0"}
    write_files(upstream.root, files)
    client = Target(project=OTHER, variants=(variant_of("o", replaced("other:h", _ours)),), optional=True)
    made = upstream.patch(others=(client,))
    note(made, Tree([str(upstream.root)]))
    made = made.replace(targets=(made.targets[0].replace(serves="other"), *made.targets[1:]))
    upstream.write(core="def scale(value):\n    return value * 3\n")
    engine = Engine(lambda: {made.id: made}, table=tables())
    try:
        engine.enable("all", strict=True)
        assert upstream.load().scale(1) == 3
        assert "NOT applied" in capfd.readouterr().err
        with pytest.raises(PatchError, match="unknown-source"):
            importlib.import_module("other")
    finally:
        engine.disable()
        sys.modules.pop("other", None)


def test_it_is_left_out_until_the_one_it_serves_is_there(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the order in which a worker gets it: Megatron, a folder more on the path, verl."""
    home = tmp_path / "later"
    files = {"other/__init__.py": "def h():\n    return 'theirs'\n", "other/VERSION": "1.0"}
    write_files(home, files)
    wanted = variant_of("o", replaced("other:h", _ours))
    client = Target(project=OTHER, variants=(wanted,), optional=True)
    made = upstream.patch(others=(client,))
    note(made, Tree([str(upstream.root), str(home)]))
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
        sys.modules.pop("other", None)
    assert "NOT applied" not in capfd.readouterr().err
