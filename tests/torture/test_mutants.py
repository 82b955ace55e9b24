"""A little of `scripts/torture mutants` in every run of the tests: the releases that are installed here."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from checks import SEED

import overlay
from overlay.source.registry import load_patches
from tortures._attack import Attack, Mutant
from tortures._breaking import breaking
from tortures._mutations import HARMLESS
from tortures._neighbours import relied_on
from tortures._run_contracts import CONTRACTS, outcomes
from tortures._upstreams import Pristine, Release

pytestmark = pytest.mark.real

#: Patches, one of each upstream that is installed.
PATCHES = ("megatron.agreement", "megatron.recompute", "verl.strict-token-budget", "verl.fast-partitioner")


@pytest.fixture(scope="module")
def site() -> Path:
    found = importlib.util.find_spec("verl")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


@pytest.fixture
def attack(site: Path) -> Any:
    """Return what lists the mutants of a patch on what is installed here."""
    print(f"OVERLAY_TEST_SEED={SEED}")
    release, tree = Release("installed", (site,)), Pristine((site,))

    def of(patch: str, beside: int = 0) -> list[Mutant]:
        return list(Attack(load_patches()[patch], release, tree, (), SEED).mutants(beside))

    of.tree = tree  # type: ignore[attr-defined]
    return of


@pytest.mark.parametrize("patch", PATCHES)
def test_a_changed_site_is_refused_and_a_quoted_one_is_not(attack: Any, patch: str) -> None:
    mutants = attack(patch)
    wrong = [
        (one.site, one.kind, one.verdict)
        for one in mutants
        # What is relied on may change as long as it does what is asked of it.
        if one.where == "inside" and (one.verdict == "apply") != (one.kind in HARMLESS)
    ]
    assert wrong == []
    assert all(one.reason for one in mutants if one.verdict != "apply")
    kinds = Counter(one.kind for one in mutants)
    assert len(kinds) >= 8, kinds


def test_every_patch_has_a_contract() -> None:
    assert CONTRACTS.keys() == load_patches().keys()


@pytest.mark.nightly("it is the tool that is tried, and each starts processes")
def test_a_change_is_seen_where_a_contract_starts_processes(site: Path) -> None:
    """Else each of their mutants would hold: ranks and Ray's workers import for themselves."""
    # One for each way in which contracts start processes, and a module that it imports and does not change.
    modules = {
        "megatron.dynamic-cp-names": "megatron.core.utils",
        "megatron.reduce-contiguous": "megatron.core.utils",
        "verl.sft-balance": "verl.utils.tensordict_utils",
    }
    jobs = []
    for patch, module in modules.items():
        assert CONTRACTS[patch].starts
        file = site.joinpath(*module.split(".")).with_suffix(".py")
        jobs.append((patch, module, f"{file.read_text()}\nraise ArithmeticError('on purpose')\n"))
    for (patch, *_), (outcome, why) in zip(jobs, outcomes([site], jobs, SEED), strict=True):
        assert outcome == "raises", patch
        assert "ArithmeticError: on purpose" in why, patch


def test_the_audit_of_a_folder_says_the_same(attack: Any, site: Path, tmp_path: Path) -> None:
    shutil.copytree(site / "verl/utils", tmp_path / "verl/utils")
    shutil.copytree(site / "verl/version", tmp_path / "verl/version")
    for name in ("__init__.py", "protocol.py"):
        shutil.copy(site / "verl" / name, tmp_path / "verl" / name)
    mutants = [one for one in attack("verl.strict-token-budget", 6) if one.module.startswith("verl.utils.")]
    for one in mutants[::4]:
        path = tmp_path.joinpath(*one.module.split(".")).with_suffix(".py")
        before = path.read_bytes()
        path.write_text(one.text(attack.tree))
        (verdict,) = (v for v in overlay.plan([one.patch], str(tmp_path)).verdicts if v.patch == one.patch)
        assert verdict.verdict == one.verdict, (one.site, one.kind, verdict.reason)
        path.write_bytes(before)


@pytest.mark.parametrize("patch", ["megatron.agreement", "verl.critic-loss-scale"])
def test_whatever_a_condition_asks_for_is_taken_away(attack: Any, patch: str) -> None:
    """A mutant that came to nothing would be left out, and be no attack."""
    asked = relied_on(load_patches()[patch], attack.tree)
    assert asked
    kinds = {one.kind for one in attack(patch)}
    for condition in asked:
        assert breaking(condition).keys() <= kinds


def test_what_made_the_agreement_silent_is_refused(attack: Any) -> None:
    # An early return in what calls the seam: without its digest in the shape, ranks were never compared.
    site = "megatron.core.parallel_state:initialize_model_parallel"
    found = {one.kind: one.verdict for one in attack("megatron.agreement") if one.site == site}
    assert found["early return"] == "unknown-source"
