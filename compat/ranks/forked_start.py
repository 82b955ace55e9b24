"""Starts a rank program on forked ranks: `forked_start.py RANKS PROGRAM MODULE FOLDER [CASE...]`.

What a program and its cases import is most of what its ranks would do, each for itself. Here it is imported
once, before the ranks are forked. A program has `start(arguments)`, which is what it does as a rank; with a
function `warm`, the module of its cases imports what only its cases ask for.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Import, fork, and return the greatest of the exit statuses of the ranks."""
    ranks, path, *rest = arguments
    program_path = Path(path)
    sys.path[0] = str(program_path.parent)
    sys.argv = [path, *rest]
    # Overlay first, as the program wants it; what is below imports torch.
    program = importlib.import_module(program_path.stem)
    if rest[0]:
        cases = importlib.import_module(rest[0])
        if hasattr(cases, "warm"):
            cases.warm()
    from overlay.compat.forked_ranks import run

    def work() -> int:
        program.start(rest)
        return 0

    return run(int(ranks), work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
