"""Every patch is held to the same form."""

from __future__ import annotations

import re

import pytest
from patch_words import ID, UPSTREAM

from overlay.patch import CHANGES, Calls, Patch, variant
from overlay.source.registry import contract_of, load_patches

PATCHES = load_patches()
SITE = r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?"


@pytest.fixture(params=sorted(PATCHES))
def patch(request: pytest.FixtureRequest) -> Patch:
    return PATCHES[request.param]


def test_its_words(patch: Patch) -> None:
    assert ID.fullmatch(patch.id)
    assert 10 <= len(patch.summary) <= 90
    assert not patch.summary.endswith(".")
    assert "\n" not in patch.summary
    assert len(patch.why) >= 80
    assert patch.why.rstrip().endswith(".")
    assert bool(patch.without) is patch.companion, "what a job does without it, which a companion alone says"
    assert patch.upstream or patch.companion, "a companion fixes nothing"
    assert all(UPSTREAM.fullmatch(reference) for reference in patch.upstream)
    assert patch.changes
    assert {*patch.changes} <= {*CHANGES}
    assert patch.met.endswith(".")
    assert patch.evidence.endswith(".")


def test_it_has_a_contract_and_what_it_requires(patch: Patch) -> None:
    assert contract_of(patch.id) is not None
    assert {*patch.requires} <= {*PATCHES}


def test_its_targets(patch: Patch) -> None:
    leading, *_ = patch.targets
    assert not leading.optional, "the first one leads"
    assert patch.id.partition(".")[0] == leading.project.name.partition("-")[0]
    serving = {target.project.name: target.serves for target in patch.targets}
    for target in patch.targets:
        assert target.serves != target.project.name
        assert not target.serves or serving[target.serves] == "", "it serves one that serves another"
        names = [one.name for one in target.variants]
        assert names
        assert len(names) == len({*names})
        for one in target.variants:
            assert one.replacements
            for site in one.sites():
                assert re.fullmatch(SITE, site), site


def test_a_companion_waits_for_no_second_module(patch: Patch) -> None:
    """Many processes import one module of an upstream: the ledger says of none that something is missing."""
    for one in (one for target in patch.targets for one in target.variants if patch.companion):
        assert len({item.site.partition(":")[0] for item in one.replacements}) == 1, one.name


def test_a_variant_asks_about_what_is_called_and_names_no_site_twice() -> None:
    calls = Calls(site="a:f", callee="g")
    assert variant("1", calls).sites() == ("a:g", "a:f")
    assert variant("1", calls, "a:g").sites() == ("a:g", "a:f")
    with pytest.raises(ValueError, match="variant '1' names a:f twice"):
        variant("1", calls, "a:f")
