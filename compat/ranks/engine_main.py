"""What every rank does: runs the cases of a module, one after the other.

Arguments: the module's name, a folder, and the names of cases if not all are run. A module has
`cases(world)`, which returns an ordered list of (name, tensor parallel size, pipeline parallel size,
function), or with the expert parallel size and the number of virtual stages before the function. It is run on
all ranks and returns something that JSON can hold.
"""

from __future__ import annotations

import overlay
from overlay.compat.ranks import quick_rank

overlay.enable()  # what, and how strictly, says the environment: as on the ranks of a real job

import importlib  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from overlay.compat.no_triton import no_triton  # noqa: E402

quick_rank.te_stand_in()

with no_triton():
    from overlay.compat import cpu_engine


def main(module: str, folder: Path, only: list[str]) -> None:
    """Run the cases, and write what each of them returned or raised."""
    known = importlib.import_module(module).cases(int(os.environ["WORLD_SIZE"]))
    cases = [case for case in known if not only or case[0] in only]
    layouts = list(dict.fromkeys(case[1:-1] for case in cases))
    with (
        (folder / f"rank{os.environ['RANK']}.jsonl").open("w", encoding="utf-8") as report,
        cpu_engine.cpu_ranks(),
    ):
        for layout in layouts:
            tensor, pipeline, expert, virtual = (*layout, 1, None)[:4]
            with cpu_engine.parallel_state(tensor, pipeline, expert=expert, virtual=virtual):
                for name, *where, case in cases:
                    if tuple(where) == layout:
                        quick_rank.tell(report, name, case)


def start(arguments: list[str]) -> None:
    """Be a rank, to its end."""
    quick_rank.be_a_rank(main, arguments)


if __name__ == "__main__":
    start(sys.argv[1:])
