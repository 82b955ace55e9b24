"""What ranks of Megatron show beside the contracts of `test_contracts.py`.

More ranks than a contract asks, which cases upstream alone gets wrong, and what patches leave as it is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import SEED, UPSTREAMS
from listed_sources import Listed

from overlay.compat.ranks.findings import megatron_ranks
from overlay.patches.megatron.grad_norm.contract import MARKED, UNMARKED
from overlay.patches.megatron.grad_norm.contract import wrong as wrong_norms
from overlay.patches.megatron.moe_aux_scale.contract import wrong as wrong_losses

pytestmark = [pytest.mark.distributed, pytest.mark.real]


@pytest.fixture
def folder(version: str, listed: Listed) -> Path:
    return listed(f"megatron-core=={version}")


# --- megatron.grad-norm: the marks are those of Transformer Engine 2.12 and 2.15, by a stand-in ---


@pytest.mark.parametrize("case", [(MARKED, 2), (UNMARKED, 4)])
@pytest.mark.parametrize("version", ["0.16.1"])
def test_each_element_counts_once(folder: Path, case: tuple[str, int]) -> None:
    marks, ranks = case
    assert wrong_norms(SEED, marks, release=folder, ranks=ranks) == [], SEED


# --- megatron.mtp-loss-scale ---


@pytest.mark.parametrize("version", ["0.16.1"])
def test_one_selection_mends_both_defects_of_multi_token_prediction(
    folder: Path, listed: Listed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `overlay audit` and docs/patches.md print it, with Megatron's model and verl's postprocess."""
    monkeypatch.setenv("VERL_FOLDER", str(listed("verl==0.8.0")))
    for selected in ("all,megatron.mtp-loss-scale", "megatron.mtp-loss-scale,megatron.mtp-without-tokens"):
        found = megatron_ranks(SEED, UPSTREAMS / "verl_mtp_cases.py", selected, release=folder, te=True)
        off = [name for name, rows in found.items() for row in rows if not max(row.values()) < 1e-4]
        assert found
        assert off == [], (SEED, selected)


# --- megatron.moe-aux-scale ---


@pytest.mark.nightly(
    "two ranks stand for four, and the last release for those before", version=("0.15.3", "0.16.1")
)
@pytest.mark.parametrize("version", ["0.15.3", "0.16.1", "0.19.2"])
def test_losses_weigh_as_in_one_process_on_four_ranks(folder: Path) -> None:
    assert wrong_losses(SEED, release=folder, ranks=4) == [], SEED


@pytest.mark.nightly("the contract shows what upstream does alone")
@pytest.mark.parametrize("version", ["0.19.2"])
def test_what_upstream_alone_weighs_wrongly_since_0_19(folder: Path) -> None:
    """The last of each is no gradient, but a report, which the patch leaves as it is."""
    assert wrong_losses(SEED, patched=False, release=folder, left=True) == [
        f"{layout}, {kind}, per token, padded{said}"
        for layout in ("tp", "cp")
        for kind, said in (("aux_loss", ""), ("seq_aux_loss", ""), ("z_loss", ", as reported"))
    ]


@pytest.mark.nightly("the last release stands for it", version=("0.15.3", "0.16.1"))
@pytest.mark.parametrize(("version", "masked"), [("0.15.3", 1), ("0.16.1", 1), ("0.19.2", 2)])
def test_what_upstream_and_the_patch_leave_of_global_aux_loss(folder: Path, masked: int) -> None:
    """What docs/known-issues.md says of it: with a mask, and over data parallel ranks."""
    found = megatron_ranks(SEED, UPSTREAMS / "moe_global_cases.py", "megatron.moe-aux-scale", release=folder)
    for name, ranks in found.items():
        layout = name.partition(",")[0]
        right = 1 / 2 if layout in ("dp", "ep") else 1
        if name.endswith("padded"):
            right = masked if layout in ("tp", "cp") else 1
        for rank in ranks:
            assert rank["scale"] == pytest.approx(right, rel=1e-4), (SEED, name)
            assert rank["reported"] < 1e-4, (SEED, name)
