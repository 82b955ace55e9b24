"""The records of known defects are of one form, and each patch mends at least one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version

from overlay.auditing.job_settings import names
from overlay.auditing.upstream_options import options
from overlay.authoring.lint import ID, UPSTREAM
from overlay.catalogue.known_defects import dialects, load_defects
from overlay.catalogue.registry import load_patches
from overlay.compat.projects import MEGATRON, MILES, SLIME, VERL
from overlay.defect import HARMS, READ, Beyond, Defect, Setting
from overlay.patch import Absent, Calls, Fields, Known, Present
from overlay.reading.source import InstalledTree

ROOT = Path(__file__).parents[2]
PATCHES = load_patches()
DEFECTS = load_defects(PATCHES)
NAMES = {MEGATRON: "megatron", MILES: "miles", SLIME: "slime", VERL: "verl"}


#: What a setting of overlay's own asks for mends nothing.
MENDING = sorted(name for name, patch in PATCHES.items() if not patch.switch)


@pytest.mark.parametrize("name", MENDING)
def test_each_patch_mends_at_least_one_defect(name: str) -> None:
    """A patch without one has a record to be written in `patches/_defects/`."""
    assert [defect.id for defect in DEFECTS.values() if defect.patch == name]


def test_each_defect_is_of_a_patch_that_is_there() -> None:
    """Of another one the record would be passed over."""
    named = {
        name
        for path in (ROOT / "patches/_defects").glob("*.py")
        for name in re.findall(r'^ +patch="([^"]+)"', path.read_text(), re.MULTILINE)
    }
    assert named
    assert named <= set(PATCHES)


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.fixture(params=sorted(DEFECTS))
def defect(request: pytest.FixtureRequest) -> Defect:
    return DEFECTS[request.param]


def test_a_record_is_of_the_form(defect: Defect) -> None:
    assert ID.fullmatch(defect.id)
    assert defect.id.partition(".")[0] == NAMES[defect.project]
    assert defect.id not in PATCHES, "a defect is no patch"
    assert defect.summary.endswith(".")
    assert len(defect.summary) <= 250
    assert defect.harm in HARMS
    assert defect.met.endswith(".")
    assert all(UPSTREAM.fullmatch(reference) for reference in defect.upstream)
    if defect.fixed is not None:
        Version(defect.fixed)
    assert defect.way_out or not defect.tried


def test_what_was_tried_is_tried_by_a_test_on_each_release(defect: Defect) -> None:
    """A test on fewer releases than have the defect says so by its parameters."""
    if not defect.tried:
        return
    file, _, name = defect.tried.partition("::")
    assert name in functions(file)
    if file == "tests/real/test_advice.py":
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f'@pytest.mark.parametrize("name", having("{defect.id}"))\ndef {name}(' in source


def test_how_a_defect_was_shown_is_true(defect: Defect) -> None:
    if defect.shown == READ:
        return
    file, _, name = defect.shown.partition("::")
    assert name.partition("[")[0] in functions(file)


def test_a_defect_has_sources_that_say_so(defect: Defect) -> None:
    if not defect.variants:
        targets = {target.project: target for target in PATCHES[defect.patch].targets}
        names = [one.name for one in targets[defect.project].variants if one.verdict == "apply"]
        assert names
        assert set(defect.only) <= set(names)
        return
    assert not defect.only
    assert [one for one in defect.variants if one.verdict == "apply"]
    for variant in defect.variants:
        assert variant.verdict in ("apply", "fixed-upstream", "not-affected")
        assert not variant.replacements
        if variant.verdict == "apply":
            assert any(isinstance(one, (Known, Calls, Fields)) for one in variant.shape), variant.name
        assert all(isinstance(one, (Known, Present, Absent, Calls, Fields)) for one in variant.shape)


@cache
def verl_options() -> set[str]:
    """Return the options of the verl that is installed here."""
    pytest.importorskip("yaml")
    (verl,) = (one for one in dialects() if VERL.name in one.projects)
    found, _ = options(verl, InstalledTree().read)
    assert found
    return set(found)


def test_conditions_name_settings_that_somebody_has(defect: Defect) -> None:
    """A key that no form of settings knows could never be told: it is a slip, or lacks a default."""
    for way in defect.when:
        assert way
        for one in way:
            assert isinstance(one, (Setting, Beyond))
            if isinstance(one, Setting):
                assert (one.above is not None) + bool(one.among) + bool(one.other) == 1, one
                stated = [one.key in dialect.defaults for dialect in dialects()]
                stated += [names(option, one.key) for option in verl_options()]
                assert any(stated) or one.key in KNOWN_WITHOUT_DEFAULT, one.key


#: Settings whose defaults stand in the upstream's own files, or depend on others.
KNOWN_WITHOUT_DEFAULT = {
    "data.train_batch_size", "deallocate_pipeline_outputs", "log_prob_use_dynamic_bsz", "lr_warmup_steps",
    "micro_batch_size", "param_offload",
    "trainer.use_legacy_worker_impl", "trainer.use_v1",
}  # fmt: skip
