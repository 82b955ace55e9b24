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

#: What each release is to each patch. Releases that the patches never heard of stand for themselves.
VERL = {
    "0.6.1": {"verl.dynamic-cp-loss": "not-affected", "megatron.recompute": "not-installed"},
    "0.7.0": {"verl.dynamic-cp-loss": "not-affected", "megatron.recompute": "not-installed"},
    "0.7.1": {"verl.dynamic-cp-loss": "not-affected", "megatron.recompute": "not-installed"},
    "0.8.0": {"verl.dynamic-cp-loss": "apply", "megatron.recompute": "not-installed"},
    "0.9.0": {"verl.dynamic-cp-loss": "superseded", "megatron.recompute": "not-installed"},
    "0.9.1": {"verl.dynamic-cp-loss": "superseded", "megatron.recompute": "not-installed"},
}
MEGATRON = {
    "0.11.0": "unsupported",
    **dict.fromkeys(("0.12.0", "0.12.3", "0.13.1", "0.14.0", "0.15.3"), "apply"),
    **dict.fromkeys(("0.16.0", "0.16.1", "0.17.1", "0.18.2", "0.19.2"), "apply"),
}


def audit(folder: Path) -> dict[str, str]:
    return {verdict.patch: verdict.verdict for verdict in overlay.plan("all", str(folder)).verdicts}


@pytest.mark.parametrize("version", VERL)
def test_verl(version: str, release: Release) -> None:
    assert VERL[version].items() <= audit(release(f"verl=={version}")).items()


@pytest.mark.parametrize("version", MEGATRON)
def test_megatron(version: str, release: Release) -> None:
    found = audit(release(f"megatron-core=={version}"))
    assert found["megatron.recompute"] == MEGATRON[version]
    assert found["megatron.agreement"] == MEGATRON[version]
    assert found["verl.dynamic-cp-loss"] == "not-installed"


def test_what_is_installed_here() -> None:
    plan = overlay.plan("all")
    assert {verdict.patch: verdict.verdict for verdict in plan.verdicts} == {
        "megatron.agreement": "apply",
        "megatron.recompute": "apply",
        "verl.dynamic-cp-loss": "apply",
    }
    assert [verdict.where() for verdict in plan.verdicts] == [
        "megatron-core 0.16.1",
        "megatron-core 0.16.1, verl 0.8.0",
        "verl 0.8.0",
    ]


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
