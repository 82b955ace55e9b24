"""Makes the mesh of verl's FSDP engine on two ranks, of which the second has another selection in between.

Argument: a folder, where each rank writes what it raised in each case, empty if it went on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import overlay
from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.compat.verl_imports import stand_in

ENGINE = "verl.workers.engine.fsdp.transformer_impl"
#: What the second rank selects; the first one keeps to `all`.
CASES = {"alike": "all", "another selection": "verl.fsdp-output-memory", "alike again": "all"}


def mesh() -> Any:
    """Return the mesh that an engine makes as it is initialised."""
    module = sys.modules[ENGINE]
    engine: Any = object.__new__(vars(module)["FSDPEngine"])
    engine.engine_config = SimpleNamespace(fsdp_size=-1, ulysses_sequence_parallel_size=1)
    with mock.patch("verl.workers.engine.fsdp.utils.get_device_name", return_value="cpu"):
        engine._init_device_mesh()
    return engine.device_mesh


def rank(folder: Path) -> Iterator[str]:
    """Write what this rank raises in each case."""
    number = int(os.environ["RANK"])
    said = {}
    for case, chosen in CASES.items():
        if number == 1 and case != "alike":
            overlay.disable()
            overlay.enable(chosen)
        try:
            said[case] = "" if mesh().size() == 2 else "another mesh"
        except overlay.AgreementError as error:
            said[case] = str(error)
    (folder / f"rank{number}.json").write_text(json.dumps(said), encoding="utf-8")
    yield from ()


if __name__ == "__main__":
    stand_in()
    overlay.enable("all")
    sys.exit(wrong_on_ranks(lambda: rank(Path(sys.argv[1])), ENGINE) or 0)
