"""What releases of verl leave undone beside the defects that patches mend, and what they get right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real


def test_verl_0_9_0_leaves_marks_to_the_next_transfer(
    release: Callable[[str], Path], findings: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    program = tmp_path / "left.py"
    program.write_text(
        "import json, sys; from overlay.patches.verl.mooncake_mark.contract import wrong;"
        "print(json.dumps({'said': wrong(sys.argv[1], left=True)}))"
    )
    said = {
        version: findings(release(f"verl=={version}"), str(program), SEED)["said"]
        for version in ("0.9.0", "0.9.1")
    }
    assert said == {"0.9.0": "a mark is left over", "0.9.1": ""}, SEED


def test_rl_of_verl_0_6_loses_no_epoch(
    release: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> None:
    # The contract asks it first, and finds nothing before it comes to SFT.
    patch = "verl.resume-epoch-boundary"
    (_, said), *_ = findings(release("verl==0.6.1"), "contracts_check.py", SEED, patch)[patch]
    assert said.startswith("SFT, "), SEED
