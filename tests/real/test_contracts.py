"""What patches promise, on each release that each is for: upstream alone breaks it, with the patch it holds.

The contract ships with the patch, and `compat/support.json` says on which releases the patch applies. What is
looked at here is each patch whose removal test is the one below. By day a release stands for older ones with
the same variant of the patch, at night for those with the same source.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from repetitions import LEFT

from checks import SEED
from overlay.catalogue.registry import contract_of, load_patches
from overlay.enabling.engine import Engine
from overlay.proving.forked import HOLDS, WRONG
from sources import releases
from sources.git_sources import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.verdict import Verdict

    #: What became of a contract on upstream alone and with the patch, what the patch has counted, and what
    #: became of the contract beside all that `all` selects.
    Found = tuple[list[str], list[str], dict[str, float], list[str]]

pytestmark = pytest.mark.real

HERE = "tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract"
PATCHES = [name for name, patch in load_patches().items() if patch.remove.test == HERE]
RECORD: dict[str, dict[str, dict[str, str]]] = json.loads(
    (Path(__file__).parents[2] / "compat/support.json").read_text()
)
LINES = {line.name: line for line in releases.read()}
#: The newest first, and the heads of main branches last.
RELEASES = sorted(
    (name for name in reversed(LINES) if not LINES[name].is_image), key=lambda name: "==" not in name
)


def releases_of(patch: str, verdict: str) -> list[str]:
    """Return the releases on which that is decided on a patch."""
    return [name for name in RELEASES if RECORD.get(name, {}).get(patch, {}).get("verdict") == verdict]


NEEDED = [(patch, name) for patch in PATCHES for name in releases_of(patch, "apply")]
#: Of these the contract asks more than the cure gives: the patch's own words, or the memory of a device.
ASKS_MORE = (
    "megatron.reshardable-checkpoint",
    "verl.critic-loss-scale",
    "verl.megatron-offload-rest",
    "verl.strict-token-budget",
)
#: Releases that are right alone: the newest that is cured, and some in which the defect was not there yet.
RIGHT = [
    *(
        (patch, cured[0])
        for patch in PATCHES
        if patch not in ASKS_MORE and (cured := releases_of(patch, "fixed-upstream"))
    ),
    ("megatron.param-groups-by-lr", "megatron-core==0.15.3"),
    ("slime.one-step-log-probs", "slime==v0.2.4"),
    ("slime.resumed-schedule", "slime==v0.2.1"),
    ("verl.lora-own-memory", "verl==0.7.1"),
]
#: What these count stays on the ranks of their contracts.
COUNTED_BY_RANKS = ("slime.hf-attention-gradient",)


@functools.cache
def decided(name: str) -> dict[str, Verdict]:
    """Return what is decided on each patch on a release, nothing if the release cannot be had."""
    try:
        folder = str(releases.fetch(LINES[name]))
    except FetchError:
        return {}
    return {verdict.patch: verdict for verdict in Engine().plan_each(folder).verdicts}


def code(verdict: Verdict) -> tuple[object, ...]:
    """Return what a release has in common with those that it stands for."""
    sources = () if os.environ.get("TESTS_ONCE") else [target.findings for target in verdict.targets]
    return (*((target.project, target.variant) for target in verdict.targets), repr(sources))


@functools.cache
def stands_for(patch: str) -> dict[tuple[object, ...], str]:
    """Return the release on which a patch is tried, by what it has in common with others."""
    found: dict[tuple[object, ...], str] = {}
    for name in releases_of(patch, "apply"):
        if patch in decided(name):
            found.setdefault(code(decided(name)[patch]), name)
    return found


def is_tried(patch: str, name: str) -> bool:
    """Return whether a patch is tried on a release, or another one stands for it."""
    return (patch, name) in RIGHT or name in stands_for(patch).values()


@pytest.fixture
def found(
    patch: str, release: str, listed: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> Found:
    """What became of the contract. All patches of a release are asked in one process, if none starts more."""
    folder = listed(release)
    if not is_tried(patch, release):
        by_day = f"{LEFT}: a newer release has its variant of the patch"
        pytest.skip(by_day if os.environ.get("TESTS_ONCE") else "a newer release has its source")
    together = [
        other
        for other, name in (*NEEDED, *RIGHT)
        if name == release and is_tried(other, name) and not starts(other)
    ]
    asked = [patch] if starts(patch) else sorted(set(together))
    print(f"OVERLAY_TEST_SEED={SEED}")
    return tuple(findings(folder, "contracts_check.py", SEED, *asked)[patch])


def starts(patch: str) -> bool:
    """Return whether the contract of a patch starts processes of its own."""
    contract = contract_of(patch)
    assert contract is not None
    return contract.starts


@pytest.mark.parametrize(("patch", "release"), NEEDED)
def test_with_the_patch_the_contract_holds(patch: str, found: Found) -> None:
    _, ours, figures, _ = found
    assert ours == [HOLDS, ""], SEED
    if patch.startswith("slime.") and patch not in COUNTED_BY_RANKS:
        # On slime's own code the patch knows that it was reached.
        assert figures["changed"] > 0, SEED


@pytest.mark.parametrize(("patch", "release"), NEEDED)
def test_with_all_that_is_selected_by_default_the_contract_holds(patch: str, found: Found) -> None:
    assert found[3] == [HOLDS, ""], SEED


@pytest.mark.parametrize(
    ("patch", "release"),
    [
        *(
            pytest.param(
                *case,
                marks=pytest.mark.xfail(
                    strict=True,
                    raises=pytest.fail.Exception,
                    reason="once this passes, the patch has had its day there",
                ),
            )
            for case in NEEDED
        ),
        *RIGHT,
    ],
)
def test_upstream_alone_keeps_the_contract(patch: str, found: Found) -> None:
    outcome, said = found[0]
    if outcome == WRONG:
        pytest.fail(said)
    # That a contract raised is an error of its own.
    assert outcome == HOLDS, (SEED, patch, said)
