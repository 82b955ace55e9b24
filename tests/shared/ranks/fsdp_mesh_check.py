"""Has two ranks of verl come by where they are compared, the second at last with another selection.

Arguments: the module with the worker or trainer, and a folder, where each rank writes what it raised in each
case, empty if it went on.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import overlay
from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.compat.verl_imports import stand_in
from overlay.patches.verl.agreement.contract import COMES_BY

#: What the second rank selects; the first one keeps to `all`.
CASES = {"alike": "all", "another selection": "verl.fast-partitioner"}


def rank(module: str, folder: Path) -> Iterator[str]:
    """Write what this rank raises in each case."""
    number = int(os.environ["RANK"])
    said = {}
    for case, chosen in CASES.items():
        if number == 1 and case != "alike":
            overlay.disable()
            overlay.enable(chosen)
        try:
            COMES_BY[module](importlib.import_module(module))
            said[case] = ""
        except overlay.AgreementError as error:
            said[case] = str(error)
    (folder / f"rank{number}.json").write_text(json.dumps(said), encoding="utf-8")
    yield from ()


if __name__ == "__main__":
    stand_in()
    overlay.enable("all")
    name, place = sys.argv[1:]
    sys.exit(wrong_on_ranks(lambda: rank(name, Path(place)), name) or 0)
