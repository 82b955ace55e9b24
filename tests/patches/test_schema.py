"""Every patch is held to the same form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from overlay._registry import load_patches
from overlay._shape import DIGEST_LENGTH
from overlay.patch import Absent, Known
from overlay.verdict import LOUD, VERDICTS

if TYPE_CHECKING:
    from overlay.patch import Patch, Target

PATCHES = load_patches()
SITE = re.compile(r"[a-z_][\w.]*(:[A-Za-z_][\w.]*)?")


@pytest.fixture(params=sorted(PATCHES))
def patch(request: pytest.FixtureRequest) -> Patch:
    return PATCHES[request.param]


def variants(patch: Patch) -> list[tuple[Target, str]]:
    return [(target, variant.name) for target in patch.targets for variant in target.variants]


def test_identity(patch: Patch) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*", patch.id)
    assert patch.revision >= 1


def test_words(patch: Patch) -> None:
    assert 10 <= len(patch.summary) <= 90
    assert not patch.summary.endswith(".")
    assert "\n" not in patch.summary
    assert len(patch.why) >= 80
    assert patch.why.rstrip().endswith(".")
    assert patch.upstream
    for reference in patch.upstream:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{7,40})", reference), reference


def test_removal(patch: Patch) -> None:
    assert patch.remove.when
    assert not patch.remove.when.endswith(".")
    if patch.remove.version is not None:
        Version(patch.remove.version)
    path, _, name = patch.remove.test.partition("::")
    from pathlib import Path

    file = Path(__file__).parents[2] / path
    assert file.is_file(), patch.remove.test
    assert not name or f"def {name.partition('[')[0]}(" in file.read_text(), patch.remove.test


def test_requirements_exist(patch: Patch) -> None:
    assert set(patch.requires) <= set(PATCHES)


def test_targets(patch: Patch) -> None:
    assert patch.targets
    assert not patch.targets[0].optional
    assert patch.id.partition(".")[0] == patch.targets[0].project.name.partition("-")[0]
    for target in patch.targets:
        names = [variant.name for variant in target.variants]
        assert len(names) == len(set(names))
        assert any(variant.verdict == "apply" for variant in target.variants)


def test_variants(patch: Patch) -> None:
    for target in patch.targets:
        for variant in target.variants:
            SpecifierSet(variant.versions)
            assert variant.verdict in VERDICTS
            assert variant.verdict == "unsupported" or variant.verdict not in LOUD
            assert variant.shape, "a version alone does not identify an upstream"
            for condition in variant.shape:
                assert SITE.fullmatch(condition.site), condition
            if variant.verdict == "apply":
                assert variant.replacements
                assert not variant.reason
            else:
                assert not variant.replacements
                assert variant.reason


def test_what_is_replaced_is_known(patch: Patch) -> None:
    for target in patch.targets:
        for variant in target.variants:
            known = [condition for condition in variant.shape if isinstance(condition, Known)]
            for condition in known:
                assert condition.digests
                for digest in condition.digests:
                    assert re.fullmatch(f"[0-9a-f]{{{DIGEST_LENGTH}}}", digest), (patch.id, condition)
            sites = [replacement.site for replacement in variant.replacements]
            assert len(sites) == len(set(sites))
            new = [replacement.site for replacement in variant.replacements if replacement.new]
            absent = {condition.site for condition in variant.shape if isinstance(condition, Absent)}
            assert set(sites) - set(new) <= {condition.site for condition in known}
            assert set(new) <= absent
            # Inside a class Python stores a private name under another one.
            names = [name for site in sites for name in site.partition(":")[2].split(".")[1:]]
            assert not [name for name in names if name.startswith("__") and not name.endswith("__")]


def test_variants_of_one_target_that_apply_do_not_overlap_in_version_and_shape(patch: Patch) -> None:
    for target in patch.targets:
        shapes = [(variant.versions, variant.shape) for variant in target.variants]
        assert len(shapes) == len(set(shapes))
