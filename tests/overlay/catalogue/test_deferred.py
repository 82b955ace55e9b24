"""Patches that are not imported until more is asked of them than arming takes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from fake_upstream import PATCH_FILE, write_files

from overlay.catalogue import registry
from overlay.catalogue.deferred import Deferred, facts, index_of, whole
from overlay.errors import OverlayError
from overlay.patch import Patch
from records import index

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fake_upstream import Upstream

    from overlay.enabling.engine import Engine

NAME = "slime.vpp-ceiling"


def deferred() -> Patch:
    patch = registry.deferred_patches()[NAME]
    assert type(patch) is Deferred
    return patch


def test_the_index_is_that_of_the_patches() -> None:
    """`./scripts/matrix index` writes it."""
    assert index.main(["--check"]) == 0
    assert index_of("overlay.patches") == {
        name: facts(patch) for name, patch in registry.load_patches().items()
    }


def test_a_deferred_patch_is_the_patch_in_all_that_is_asked_of_it() -> None:
    patches = registry.load_patches()
    found = registry.deferred_patches()
    assert list(found) == list(patches)
    for name, patch in patches.items():
        assert found[name].modules() == patch.modules()
        assert (found[name].requires, found[name].switch) == (patch.requires, patch.switch)
        assert type(found[name]) is Deferred
    assert found == patches
    assert patches == found


@pytest.mark.parametrize(
    "ask",
    [
        lambda patch: patch.targets,
        lambda patch: patch.without,
        repr,
        hash,
        lambda patch: patch.to_dict(),
        lambda patch: patch.replace(revision=9),
        lambda patch: patch == 1,
        lambda patch: pickle.loads(pickle.dumps(patch)),  # noqa: S301 -- of our own
        lambda patch: type(pickle.loads(pickle.dumps(patch))),  # noqa: S301
    ],
)
def test_whatever_is_asked_makes_it_whole(ask: object) -> None:
    patch = deferred()
    told = ask(patch)  # type: ignore[operator]
    assert told == ask(registry.load_patches()[NAME])  # type: ignore[operator]
    assert type(patch) is Patch
    assert vars(patch) == vars(registry.load_patches()[NAME])
    assert whole(patch) is patch


def test_a_patch_that_is_not_as_indexed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = deferred()
    module = sys.modules[registry.module_of(NAME)]
    monkeypatch.setattr(module, "PATCH", module.PATCH.replace(targets=()))
    with pytest.raises(OverlayError, match=f"not that of {NAME}: in a checkout"):
        patch.targets  # noqa: B018 -- it is what raises


def test_one_that_cannot_be_imported_takes_no_other_with_it(
    upstream: Upstream, engines: Callable[..., Engine]
) -> None:
    def load(_module: str, _name: str) -> Patch:
        raise ModuleNotFoundError("No module named 'nowhere'")

    known = {"revision": 3, "modules": ("fakeup.core",)}
    broken = Deferred({"id": "fakeup.broken", **known}, "nowhere", load)
    companion = Deferred({"id": "fakeup.companion", "companion": True, **known}, "nowhere", load)
    engine = engines(upstream.patch(), broken, companion)
    engine.enable()
    upstream.load()
    found = {one.patch: one for one in engine.status().patches}
    assert found["fakeup.scale"].state == "applied"
    for name in (broken.id, companion.id):
        assert found[name].state == "skipped"
        assert "No module named 'nowhere'" in found[name].reason


def test_what_is_not_indexed_is_imported_at_once(tmp_path: Path) -> None:
    """A branch may have a patch that the index lacks, or lack one that it has."""
    files = {
        "half/__init__.py": "",
        "half/_index.py": "INDEX = {name: {'id': name, 'revision': 1, 'modules': ()} for name in"
        " ('lib.known', 'lib.gone')}",
        "half/lib/__init__.py": "",
        "half/lib/known/__init__.py": PATCH_FILE.format(id="lib.known"),
        "half/lib/other/__init__.py": PATCH_FILE.format(id="lib.other"),
        "half/lib/gone.txt": "",
    }
    write_files(tmp_path, files)
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from overlay.catalogue.registry import deferred_patches\n"
        "found = deferred_patches('half')\n"
        "print(json.dumps([sorted(found), 'half.lib.known' in sys.modules, 'half.lib.other' in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [["lib.known", "lib.other"], False, True]
