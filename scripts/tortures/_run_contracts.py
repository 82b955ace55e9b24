"""Started with a release first on the path: runs contracts, each in a fork with one module changed.

    python _run_contracts.py SEED SECONDS < JOBS

A job is a line of JSON, `[patch, module, text]`; without a module nothing is changed. Two more can follow:
`alone`, for the defect on upstream without the patch, or `strictly`, as a row of the table asks; and a table
that is added. Prints a line of JSON for each, `[outcome, what was said]`. What takes long to import is
imported once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.desk.prove.forked import CRASHED, HOLDS, NO_END, RAISES, WRONG, forked
from overlay.desk.prove.runner import STRICTLY, defect_of, import_before
from overlay.model.settings import ALONE, PROVE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCRIPTS = Path(__file__).resolve().parents[1]

__all__ = ["HOLDS", "NO_END", "RAISES", "WRONG"]


class _Loader(SourceFileLoader):
    """Loads a module from another source than that of its file."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        return self._text.encode() if path == self.path else super().get_data(path)

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError  # the compiled file is that of the file


class _Finder:
    """Finds one module where it is, with the loader above."""

    def __init__(self, module: str, text: str) -> None:
        self._module, self._text = module, text

    def find_spec(self, name: str, path: Sequence[str] | None, _target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == self._module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin, self._text)
        return spec


def run(job: list[str], seed: str) -> str:
    """Return what one contract says in this process, which is not fit for another afterwards."""
    from tortures._contracts import CONTRACTS
    from tortures._on_disk import on_disk

    patch, module, text, how, trust = (*job, "", "")[:5]
    os.environ.update({PROVE: ALONE if how == ALONE else "", "OVERLAY_TRUST": trust})
    contract = CONTRACTS[patch]
    changed: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if module and contract.starts:
        changed = on_disk(module, text)
    elif module:
        sys.meta_path.insert(0, _Finder(module, text))
    with changed:
        if how == ALONE:
            return defect_of(patch)(seed)
        return contract.strictly(seed) if how == STRICTLY else contract.check(seed)


def outcome(job: list[str], seed: str, seconds: float) -> tuple[str, str]:
    """Return the outcome of one contract in a fork."""
    found, why = forked(lambda: run(job, seed), seconds)
    return (RAISES if found == CRASHED else found), why


def main(seed: str, seconds: int) -> None:
    """Run what comes in."""
    warnings.simplefilter("ignore")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    sys.path.insert(0, str(SCRIPTS))
    from tortures._contracts import CONTRACTS

    # What a module says as it is imported is not an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    import torch

    torch.set_num_threads(1)
    jobs = [json.loads(line) for line in sys.stdin]
    import_before(CONTRACTS[job[0]] for job in jobs)
    here = {job[1] for job in jobs if not CONTRACTS[job[0]].starts}
    if early := sorted(here & sys.modules.keys()):
        sys.exit(f"imported before it was changed: {', '.join(early)}")
    for job in jobs:
        answers.write(json.dumps(outcome(job, seed, seconds)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
