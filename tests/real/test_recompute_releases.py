"""`megatron.recompute` with real MoE layers: what stays in memory, on the last release of each minor version.

Flags, aliases and what is recomputed within a recomputation are the contract's.
"""

from __future__ import annotations

import pytest
from listed_sources import Findings, Listed

#: The others have the same source at the site.
RELEASES = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")


@pytest.mark.real
@pytest.mark.nightly("the last release stands for the others", version=RELEASES[:-1])
@pytest.mark.parametrize("version", RELEASES)
def test_the_input_and_its_gradient_are_released_and_gradients_are_the_same_bits(
    version: str, listed: Listed, findings: Findings
) -> None:
    found = findings(listed(f"megatron-core=={version}"), "recompute_check.py")
    assert found["version"].startswith(version)
    for dispatcher, stock in found["stock"].items():
        ours = found["overlay"][dispatcher]
        # Of two layers, the input and its gradient.
        assert stock["retained"] - ours["retained"] == 4 * stock["input"]
        assert ours["gradients"] == stock["gradients"]
