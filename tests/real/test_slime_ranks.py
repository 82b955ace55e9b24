"""What slime's patches compute on four gloo ranks that share samples, against one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import SEED
from rank_rows import answers
from slime_ranks import MILES, MILES_RL, folder, on_ranks

__all__ = ["folder"]

pytestmark = [pytest.mark.distributed, pytest.mark.real]

#: By how a case begins: of advantages of about one in float32, over hundreds of tokens of an estimate; of a
#: layer in float64; of small whole numbers in the type that models are trained in.
TOLERANCES = {"whitened": 1e-5, "estimated": 1e-4, "mixing": 1e-10, "bfloat16": 0.0}
#: How many cases there are: 24 whiten, 12 more behind a user's function, 7 are of slime's layer, and the rest
#: of each way of splitting tokens.
CASES = {"v0.2.4": 24 + 7 + 16, "v0.3.1": 24 + 12 + 7 + 14, MILES: 24, MILES_RL: 24}
OF_SLIME = ("whiten-over-cp", "masked-gae", "hf-attention-gradient")


@pytest.mark.nightly("the newest stands for it", revision=("v0.2.4", MILES_RL))
@pytest.mark.parametrize("revision", CASES)
def test_ranks_get_what_one_process_gets(folder: Path, revision: str) -> None:
    found = dict(on_ranks(folder, "slime_rank_cases", *OF_SLIME[: 1 if revision in (MILES, MILES_RL) else 3]))
    masked = answers(found, "masked, cp2")
    del found["masked, cp2"]
    assert {rank["error"] for rank in masked} == {"ValueError"}
    assert all("loss masks of all ranks are empty" in rank["message"] for rank in masked)
    assert len(found) == CASES[revision]
    for name in found:
        for rank in answers(found, name):
            assert "message" not in rank, (SEED, name, rank)
            assert rank.get("finite", True), (SEED, name, rank)
            errors = [rank[what] for what in ("error", "output", "gradient") if what in rank]
            assert all(error <= TOLERANCES[name.split(",")[0]] for error in errors), (SEED, name, rank)
    # There were ranks without a token.
    assert any(rank["tokens"] == 0 for rank in found["whitened, late, cp4, rewards"])
