"""What patches promise, on real upstreams: alone each breaks it where the patch applies, with it it holds.

The contract ships with the patch, and the tables say where the patch applies: one source stands for all that
are alike, the newest that is no image. Where the contract of a patch holds without it, a row says so too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from checks import SEED
from listed_sources import Findings, Listed
from repetitions import LEFT

from overlay.desk.prove.prove import HOLDS, RAISES, WRONG
from overlay.source.registry import contract_of, load_patches
from overlay.verdict import APPLY
from records import _support_print
from sources import releases

if TYPE_CHECKING:
    from overlay.source.table import Row

    #: What became of a contract on upstream alone and with the patch, what the patch has counted, and what
    #: became of the contract beside all that `all` selects. `None` where it was not asked.
    Found = tuple[list[str] | None, list[str], dict[str, float], list[str] | None]

pytestmark = pytest.mark.real

PATCHES = load_patches()
#: The newest first, and the heads of main branches last.
NAMES = sorted(
    (line.name for line in reversed(releases.read()) if not line.is_image), key=lambda name: "==" not in name
)


def newest(row: Row) -> str:
    """Return the newest source of a row that is no image, empty if all are."""
    return next((name for name in NAMES if name in row.sources()), "")


#: The rows of each patch for the project that it is named after, and that serve no other.
ROWS = [
    row
    for row in _support_print.rows()
    if row.patch in PATCHES
    and contract_of(row.patch) is not None
    and row.target == PATCHES[row.patch].targets[0].project.name
    and not PATCHES[row.patch].targets[0].serves
    and newest(row)
]
NEEDED = [(row.patch, newest(row)) for row in ROWS if row.verdict == APPLY]


def starts(patch: str) -> bool:
    """Return whether the contract of a patch starts processes of its own."""
    contract = contract_of(patch)
    assert contract is not None
    return contract.starts


#: By day the newest release stands for the older ones. A row says that the contract was run, with the code as
#: it is, on each of the others too, and what starts processes is run with its patch alone.
BY_DAY = {
    (row.patch, row.verdict): newest(row)
    for row in sorted(ROWS, key=lambda row: NAMES.index(newest(row)), reverse=True)
    if row.verdict == APPLY or (row.shown == "alone" and not starts(row.patch))
}
RIGHT = [(row.patch, newest(row)) for row in ROWS if row.verdict == "not-needed" and row.shown == "alone"]
#: What these change is changed, and counted, on several ranks alone, if not on others than this process.
COUNTED_BY_RANKS = (
    "megatron.gated-norm-over-tp", "megatron.label-smoothing-over-tp", "megatron.mla-rotary-key-over-tp",
    "megatron.gate-of-own-heads", "megatron.gdn-cp-comm-type", "megatron.moe-tracker-with-mtp",
    "slime.allgather-cp-replay", "slime.hf-attention-gradient", "slime.overlap-again", "slime.whiten-over-cp",
    "miles.whiten-over-cp", "verl.agreement", "verl.lora-merged-sync", "verl.vpp-training-hooks",
)  # fmt: skip
#: In the contracts of these there is something to change wherever they look.
ALWAYS = ("megatron.recompute", "megatron.reshardable-checkpoint")
#: How much this one changes only the device knows.
UNTOLD = "megatron.mtp-without-tokens"
#: In the contract of this one, time decides how often there is.
SOMETIMES = "slime.async-groups"


def asked(patch: str, name: str) -> str:
    """Return what `contracts_check.py` is asked about a patch on a source."""
    if (patch, name) in RIGHT:
        return f"{patch}=alone"
    return f"{patch}=with" if starts(patch) and os.environ.get("TESTS_ONCE") else patch


def is_tried(patch: str, name: str) -> bool:
    """Return whether a patch is tried on a source, or by day another one stands for it."""
    by_day = {source for (of, *_), source in BY_DAY.items() if of == patch}
    return not os.environ.get("TESTS_ONCE") or name in by_day


@pytest.fixture
def found(patch: str, release: str, listed: Listed, findings: Findings) -> Found:
    """What became of the contract. All patches of a release are asked in one process, if none starts more."""
    folder = listed(release)
    if not is_tried(patch, release):
        pytest.skip(f"{LEFT}: a newer release stands for it")
    together = [
        other
        for other, name in (*NEEDED, *RIGHT)
        if name == release and is_tried(other, name) and not starts(other)
    ]
    words = [asked(one, release) for one in ([patch] if starts(patch) else sorted(set(together)))]
    print(f"OVERLAY_TEST_SEED={SEED}")
    return tuple(findings(folder, "contracts_check.py", SEED, *words)[patch])


def told(outcome: list[str] | None) -> list[str]:
    """Return an outcome, or leave the test to the nightly run."""
    if outcome is None:
        pytest.skip(f"{LEFT}: by day the contract is run with its patch alone")
    return outcome


@pytest.mark.parametrize(("patch", "release"), NEEDED)
def test_with_the_patch_the_contract_holds(patch: str, found: Found) -> None:
    _, ours, figures, _ = found
    assert ours == [HOLDS, ""], SEED
    if not starts(patch) and patch not in COUNTED_BY_RANKS:
        # The patch knows that it was reached, and where there was nothing to change.
        assert figures["calls" if patch == UNTOLD else "changed"] > 0, SEED
        if "calls" in figures and patch not in (SOMETIMES, UNTOLD):
            assert (figures["changed"] < figures["calls"]) is (patch not in ALWAYS), SEED


@pytest.mark.parametrize(("patch", "release"), NEEDED)
def test_with_all_that_is_selected_by_default_the_contract_holds(patch: str, found: Found) -> None:
    assert told(found[3]) == [HOLDS, ""], SEED


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
def test_upstream_alone_keeps_the_contract(patch: str, release: str, found: Found) -> None:
    outcome, said = told(found[0])
    if outcome == WRONG or (outcome == RAISES and (patch, release) in NEEDED):
        pytest.fail(said)
    # That a contract raised is an error of its own.
    assert outcome == HOLDS, (SEED, patch, said)
