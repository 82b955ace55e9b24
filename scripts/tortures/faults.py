"""An exception at every step of enabling, importing, reloading and disabling: all of a patch, or nothing.

Each line of the engine raises the first time and the last time that it is reached, as an error and as an
interrupt, each in a forked child. See `fault_steps.py` for what must hold then.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from fault_steps import ENGINE, ERRORS, SCENES, judge, steps
from forked import in_a_child
from order_world import Subject, write_upstream


def main(arguments: list[str]) -> int:
    """Raise at every step, and print how often that left what."""
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/torture faults")
    parser.add_argument("--scene", choices=list(SCENES), action="append", help="default: all")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the steps only each Nth")
    given = parser.parse_args(arguments)
    os.environ["OVERLAY_LOG"] = "info"
    sys.dont_write_bytecode = True
    wrong: list[str] = []
    print(f"{'exception while':20}{'lines':>8}{'raised':>8}{'passed on':>11}{'dealt with':>12}{'wrong':>8}")
    with tempfile.TemporaryDirectory() as folder:
        patch = write_upstream(Path(folder))
        sys.path.insert(0, folder)
        import packaging.version  # noqa: F401 -- so that it is not what is traced
        import wrapt  # noqa: F401

        for scene in given.scene or SCENES:
            wrong += _scene(scene, Subject({patch.id: patch}), given.every)
    for sentence in wrong[:20]:
        print(sentence)
    return 1 if wrong else 0


def _scene(scene: str, subject: Subject, every: int) -> list[str]:
    """Raise at the steps of one scene, print the line of the table, and return what was wrong."""

    def counted() -> dict[str, Any]:
        return {"steps": [[*place, count] for place, count in steps(scene, subject).items()]}

    reached = in_a_child(counted)["steps"][::every]
    counts: collections.Counter[str] = collections.Counter()
    wrong = []
    for file, line, count in reached:
        for kind in ERRORS:
            for time in dict.fromkeys([1, count]):
                found = in_a_child(lambda: judge(scene, subject, (file, line), time, kind))  # noqa: B023
                counts["hit"] += found.get("hit", 1)
                counts["passed on"] += bool(found.get("raised"))
                if found["wrong"]:
                    where = f"{Path(file).relative_to(ENGINE)}:{line}"
                    wrong.append(f"{scene}, {kind} at {where}, time {time}: {'; '.join(found['wrong'])}")
    dealt = counts["hit"] - counts["passed on"]
    print(
        f"{scene:20}{len(reached):8}{counts['hit']:8}{counts['passed on']:11}{dealt:12}{len(wrong):8}",
        flush=True,
    )
    return wrong
