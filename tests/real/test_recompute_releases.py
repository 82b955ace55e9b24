"""`megatron.recompute` on megatron-core 0.12 to 0.19, with real MoE layers and multi-token prediction.

Each release runs once, in a process of its own with that release first on the path. Flags, aliases and what
is recomputed within a recomputation are the contract's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

#: The last of each minor version; the others have the same source at the site.
RELEASES = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")

pytestmark = [
    pytest.mark.real,
    pytest.mark.nightly("the last release stands for the others", version=RELEASES[:-1]),
    pytest.mark.parametrize("version", RELEASES),
]


@pytest.fixture
def found(
    version: str, release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """What `recompute_check.py` found on one release."""
    folder = release(f"megatron-core=={version}")
    report = findings(folder, "recompute_check.py")
    assert Path(report["path"]).is_relative_to(folder)
    return report


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_the_input_and_its_gradient_are_released_and_gradients_are_the_same_bits(
    found: dict[str, Any], dispatcher: str
) -> None:
    stock, ours = (found[name]["layers"][dispatcher] for name in ("stock", "overlay"))
    # Of two layers, the input and its gradient.
    assert stock["retained"] - ours["retained"] == 4 * stock["input"]
    assert ours["gradients"] == stock["gradients"]


def test_multi_token_prediction_finds_the_output_of_the_decoder(found: dict[str, Any]) -> None:
    stock, ours = found["stock"]["mtp"], found["overlay"]["mtp"]
    assert ours == stock
    if stock is None:
        assert found["version"].startswith("0.18.")
    else:
        assert ours["bytes_when_needed"] == ours["bytes"]
