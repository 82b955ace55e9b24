"""The audit of real releases, as they come from the package index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import overlay

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Release = Callable[[str], Path]

pytestmark = pytest.mark.real

#: Releases, and the verdict of each patch on them in turn. Where a patch is left out it is `not-installed`.
VERL = (
    "0.6.1  0.7.0  0.7.1  0.8.0  0.9.0  0.9.1",
    {
        "verl.dynamic-cp-loss": "not-affected  not-affected  not-affected  apply  superseded  superseded",
        "verl.fast-partitioner": "apply  apply  apply  apply  apply  apply",
        "verl.sft-balance": "not-affected  apply  apply  apply  apply  apply",
        "verl.strict-token-budget": "apply  apply  apply  apply  apply  fixed-upstream",
    },
)
MEGATRON = (
    "0.11.0  0.12.0  0.12.3  0.13.1  0.14.0  0.15.3  0.16.0  0.16.1  0.17.1  0.18.2  0.19.2",
    {
        "megatron.agreement": "unsupported" + 10 * "  apply",
        "megatron.dynamic-cp-names": 6 * "not-affected  " + 5 * "apply  ",
        "megatron.recompute": "unsupported" + 10 * "  apply",
    },
)
SLIME = (
    "v0.1.0  v0.2.0  v0.2.0.post1  v0.2.1  v0.2.2  v0.2.3  v0.2.4  286750aa3  v0.3.0  v0.3.1",
    {
        "slime.capped-partitions": 8 * "apply  " + "superseded  apply",
        "slime.fast-partitioner": 10 * "apply  ",
        "slime.loss-memory": "unsupported" + 9 * "  apply",
        "slime.vpp-ceiling": 8 * "apply  " + "superseded  superseded",
        "slime.whiten-over-cp": "unsupported" + 9 * "  apply",
    },
)


def by_release(table: tuple[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    releases = table[0].split()
    verdicts = {patch: dict(zip(releases, row.split(), strict=True)) for patch, row in table[1].items()}
    return {release: {patch: row[release] for patch, row in verdicts.items()} for release in releases}


def audit(folder: Path) -> dict[str, str]:
    verdicts = overlay.plan("all", str(folder)).verdicts
    return {verdict.patch: verdict.verdict for verdict in verdicts if verdict.verdict != "not-installed"}


@pytest.mark.parametrize(("version", "expected"), by_release(VERL).items())
def test_verl(version: str, expected: dict[str, str], release: Release) -> None:
    assert audit(release(f"verl=={version}")) == expected


@pytest.mark.parametrize(("version", "expected"), by_release(MEGATRON).items())
def test_megatron(version: str, expected: dict[str, str], release: Release) -> None:
    assert audit(release(f"megatron-core=={version}")) == expected


@pytest.mark.parametrize(("revision", "expected"), by_release(SLIME).items())
def test_slime(revision: str, expected: dict[str, str], slime: Release) -> None:
    assert audit(slime(revision)) == expected


def test_what_is_installed_here() -> None:
    plan = overlay.plan("all")
    found = {verdict.patch: verdict.verdict for verdict in plan.verdicts}
    here = {**by_release(MEGATRON)["0.16.1"], **by_release(VERL)["0.8.0"]}
    assert found == {**dict.fromkeys(found, "not-installed"), **here}
    where = {verdict.patch: verdict.where() for verdict in plan.verdicts}
    assert where["megatron.recompute"] == "megatron-core 0.16.1, verl 0.8.0"
    assert where["verl.dynamic-cp-loss"] == "verl 0.8.0"


def test_a_release_that_was_edited_by_hand_is_refused(tmp_path: Path, release: Release) -> None:
    """One operator in a function that the patch only relies on."""
    import shutil

    shutil.copytree(release("verl==0.8.0") / "verl", tmp_path / "verl")
    losses = tmp_path / "verl/workers/utils/losses.py"
    text = losses.read_text()
    assert text.count("/ batch_num_tokens * dp_size") == 2
    losses.write_text(text.replace("/ batch_num_tokens * dp_size", "/ batch_num_tokens"))
    verdict = next(
        v for v in overlay.plan("all", str(tmp_path)).verdicts if v.patch == "verl.dynamic-cp-loss"
    )
    assert verdict.verdict == "unsupported"
    assert "verl.workers.utils.losses:sft_loss has an unknown digest" in verdict.reason
