"""Dynamic context parallelism on a whole transformer, on each release of Megatron-Core, against one process.

`proof_cases` says what is run. `./scripts/torture proof` runs it on eight ranks as well, and judges it alike.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import RANKS, SEED
from rank_rows import rows_of, run_once

from tortures.proof import KINDS, RELEASES, TOLERANCE, worst_of

WORLD = 4

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.real,
    pytest.mark.nightly("the last release stands for the others", megatron=RELEASES[:-1]),
    pytest.mark.parametrize("megatron", RELEASES, indirect=True),
]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_outputs_losses_and_trained_weights_are_those_of_one_process(
    megatron: Path, kind: str
) -> None:
    found = run_once(WORLD, RANKS / "proof_cases.py", release=megatron)
    cases = {name: rows_of(found, name) for name in found if name.partition(",")[0] == kind}
    assert len(cases) == {"sft": 9 + 1, "ppo": 4, "outputs": 5, "steps": 4}[kind]
    assert max(worst_of(cases)) < TOLERANCE, (SEED, cases)
    for rows in cases.values():
        for row in rows:
            assert row.get("moved", 1) > 0.1, "the weights have hardly moved"
            for part, plan in zip(row.get("seen", ()), row.get("plans", ()), strict=False):
                assert part["size"] in plan


def test_every_size_was_there_alone_and_mixed(megatron: Path) -> None:
    found = run_once(WORLD, RANKS / "proof_cases.py", release=megatron)
    plans = {name: rows_of(found, name)[0].get("plans", ()) for name in found if name.startswith("sft")}
    alone = [part["size"] for name in plans if ", C " in name for part in found[name][0]["seen"]]
    assert set(alone) == {1, 2, WORLD}
    assert [2, 1, 1] in [plan for some in plans.values() for plan in some]
