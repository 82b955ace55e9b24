"""`megatron.recompute` on every megatron-core from 0.12 to 0.19, with a real MoE layer, without a GPU.

Each release runs once, in a process of its own with that release first on the path; the tests ask what was
found there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = [pytest.mark.real, pytest.mark.by_variant("megatron.recompute", found="megatron-core")]

ID = "megatron.recompute"

#: Every release of the range that was published.
ALL_RELEASES = (
    *("0.12.0", "0.12.1", "0.12.2", "0.12.3"),
    *("0.13.0", "0.13.1"),
    *("0.14.0",),
    *("0.15.0", "0.15.1", "0.15.2", "0.15.3"),
    *("0.16.0", "0.16.1"),
    *("0.17.0", "0.17.1"),
    *("0.18.0", "0.18.1", "0.18.2"),
    *("0.19.0", "0.19.1", "0.19.2"),
)
#: The last of each minor version runs; the others have the same source at the site.
RUN = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
VERLS = ("verl-0.8.0", "verl-0.9.1")
DISPATCHERS = ("alltoall", "allgather")


@pytest.fixture(params=RUN)
def found(
    request: pytest.FixtureRequest, release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """What `recompute_check.py` found on one release."""
    folder = release(f"megatron-core=={request.param}")
    arguments = []
    for verl in VERLS:
        file = release(verl.replace("-", "==")) / "verl" / "models" / "mcore" / "patch.py"
        arguments += ["--verl", f"{verl}={file}"]
    report = findings(folder, "recompute_check.py", *arguments)
    assert Path(report["path"]).is_relative_to(folder)
    return report


def test_upstream_retains_the_input(found: dict[str, Any]) -> None:
    # Why the patch is there.
    for dispatcher in DISPATCHERS:
        layers = found["stock"]["layers"][dispatcher]
        # Two layers, of each the input and its gradient.
        assert layers["retained"] >= 4 * layers["input"]


def test_the_retained_input_hangs_on_one_attribute(found: dict[str, Any]) -> None:
    layers = found["stock"]["layers"]
    assert layers["alltoall"]["graphs_in"] == ["MoEAlltoAllTokenDispatcher.probs"]
    assert layers["allgather"]["graphs_in"] == ["MoEAllGatherTokenDispatcher.local_probs"]
    attribute = found["attribute"]
    assert attribute["before"] - attribute["after"] >= 2 * layers["alltoall"]["input"]
    assert attribute["after"] < layers["alltoall"]["input"]


def test_deleting_locals_of_unpermute_changes_nothing(found: dict[str, Any]) -> None:
    # What NVIDIA/Megatron-LM#5197 does.
    assert found["dels"]["with"] == found["dels"]["without"]


def test_the_input_and_its_gradient_are_released(found: dict[str, Any]) -> None:
    for dispatcher in DISPATCHERS:
        stock, ours = (found[name]["layers"][dispatcher] for name in ("stock", "overlay"))
        assert stock["retained"] - ours["retained"] == 4 * stock["input"]
        for verl in VERLS:
            assert ours["retained"] <= found[verl]["layers"][dispatcher]["retained"]


def test_gradients_are_bit_identical(found: dict[str, Any]) -> None:
    for dispatcher in DISPATCHERS:
        stock, ours = (found[name]["layers"][dispatcher] for name in ("stock", "overlay"))
        assert ours["gradients"] == stock["gradients"]
    assert found["overlay"]["without_output"] == found["stock"]["without_output"]


def test_the_flag_is_set_while_recomputing(found: dict[str, Any]) -> None:
    flags = found["overlay"]["flags"]
    assert flags == found["stock"]["flags"]
    assert flags in (None, [True, True, False])
    if flags is not None:
        for verl in VERLS:
            assert found[verl]["flags"] == [True, False, False]


@pytest.mark.parametrize("verl", VERLS)
def test_verls_patch_takes_the_storage_from_an_alias(found: dict[str, Any], verl: str) -> None:
    assert found[verl]["alias"]["bytes_when_needed"] == 0


def test_multi_token_prediction_finds_the_output_of_the_decoder(found: dict[str, Any]) -> None:
    stock, ours = found["stock"]["mtp"], found["overlay"]["mtp"]
    assert ours == stock
    if stock is None:
        assert found["version"].startswith("0.18.")
    else:
        assert ours["bytes_when_needed"] == ours["bytes"]


def test_verls_patch_takes_it_away_where_the_extra_layer_is_recomputed(found: dict[str, Any]) -> None:
    minor = ".".join(found["version"].split(".")[:2])
    # Before 0.14 that layer is not recomputed, and 0.18 fails by itself. verl 0.9 looks for the layer among
    # the variables of the checkpointed function, and only 0.19 has it there: before, it is a bound method.
    taken = {
        "verl-0.8.0": ("0.14", "0.15", "0.16", "0.17", "0.19"),
        "verl-0.9.1": ("0.14", "0.15", "0.16", "0.17"),
    }
    for verl in VERLS:
        mtp = found[verl]["mtp"]
        assert (mtp is not None and mtp["bytes_when_needed"] == 0) == (minor in taken[verl])
