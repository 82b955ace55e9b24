"""What is known of sources is of this code and of these patches, or this is red until it is written anew."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from overlay.catalogue.registry import load_patches
from overlay.patch import Known, Present
from overlay.reading import known as engine
from records import known

if TYPE_CHECKING:
    from pathlib import Path

AGAIN = "run `./scripts/matrix known`"


@pytest.mark.parametrize("name", load_patches())
def test_all_that_a_patch_asks_is_answered(name: str) -> None:
    assert known.lacking(load_patches()[name]) == "", AGAIN


def test_another_patch_and_other_code_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = load_patches()["verl.dynamic-cp-loss"]
    (target, *others) = patch.targets
    (variant, *variants) = target.variants
    module = variant.replacements[0].site.partition(":")[0]
    for condition in (Known(site=f"{module}:no.such", digests=()), Present(site=f"{module}:none")):
        wider = variant.replace(shape=(*variant.shape, condition))
        changed = patch.replace(targets=(target.replace(variants=(wider, *variants)), *others))
        assert known.lacking(changed).endswith(f" {condition.site.partition(':')[2]} of {module}")
    monkeypatch.setattr(engine, "_code", ["0" * engine.LENGTH])
    assert "other code" in known.lacking(patch)


def test_the_table_is_small_and_whole() -> None:
    data = known.FILE.read_bytes()
    table = engine.Table(data, engine.code())
    assert len(data) < 300_000
    for about in table._modules.values():
        for row in about["texts"].values():
            assert len(row) == len(about["asked"])
            assert all(-1 <= place < len(table._pool) for place in row)
    prints = [one for one in table._pool if isinstance(one, dict)]
    assert prints
    assert all(len(one) == len(known.PYTHONS) for one in prints)


def test_what_pythons_do_not_all_answer_alike_is_left_out(tmp_path: Path) -> None:
    about = {
        "m": {"asked": [("digest", "f"), ("has", "f"), ("prints", "f")], "texts": {"a": "...", "b": "..."}}
    }
    one = {"python": "one", "answers": {"m": {"a": ["x", True, ["1"]], "b": ["x", True, ["1"]]}}}
    other = {"python": "other", "answers": {"m": {"a": ["y", True, ["2"]], "b": None}}}
    read = json.loads(known.file_of(about, [one, other]).partition("\n")[2])
    assert read["answers"] == [True, {"one": ["1"], "other": ["2"]}]
    assert read["modules"] == {"m": {"asked": ["digest f", "has f", "prints f"], "texts": {"a": [-1, 0, 1]}}}


@pytest.mark.real
@pytest.mark.parametrize("how", [pytest.param("whole", id="whole")])
@pytest.mark.nightly("every Python parses every release", how=("whole",))
def test_the_table_is_what_would_be_written(how: str) -> None:
    """On every Python, of every release, if all can be had here."""
    if len(known.pythons()) < len(known.PYTHONS):
        pytest.skip("not every Python is here")
    assert known.main(["--check"]) != 1, AGAIN
