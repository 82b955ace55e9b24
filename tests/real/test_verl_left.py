"""What verl 0.9.0 leaves undone beside the defect that a patch fixes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checks import SEED

pytestmark = pytest.mark.real

PROGRAM = """
import json, sys
from overlay.patches.verl.mooncake_mark.contract import wrong
print(json.dumps({"said": wrong(sys.argv[1], left=True)}))
"""


@pytest.mark.parametrize(("version", "said"), [("0.9.0", "a mark is left over"), ("0.9.1", "")])
def test_verl_0_9_0_leaves_marks_to_the_next_transfer(
    version: str, said: str, listed: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> None:
    assert findings(listed(f"verl=={version}"), PROGRAM, SEED)["said"] == said, SEED
