"""Runs contracts with one release first on the path, each in a fork with one module changed.

`outcomes` starts this file as a program for that, which imports once what takes long to import:

    python _run_contracts.py SEED < JOBS

A job is a line of JSON, `[patch, module, text]`; without a module nothing is changed. Two more can follow:
`alone`, for the defect on upstream without the patch, or `strictly`, as a row of the table asks; and a table
that is added. It prints a line of JSON for each, `[outcome, what was said]`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import contract_runs
from contract_runs import defect_of, forked, import_before

from overlay.desk.prove.prove import CRASHED, HOLDS, NO_END, RAISES, STRICTLY, WRONG
from overlay.model.settings import ALONE, PROVE
from overlay.patch import Contract
from overlay.source.registry import contract_of, load_patches

__all__ = ["HOLDS", "NO_END", "RAISES", "WRONG"]

SCRIPTS = Path(__file__).resolve().parents[1]
#: Seconds for one contract, on a machine that is busy.
PATIENCE = 240
CONTRACTS: dict[str, Contract] = {
    patch: contract for patch in load_patches() if (contract := contract_of(patch)) is not None
}


class ContractError(RuntimeError):
    """The process in which contracts are run did not end well."""


def outcomes(folders: Iterable[Path], jobs: Sequence[tuple[str, ...]], seed: str) -> list[tuple[str, str]]:
    """Return the outcome of each job, and what was said.

    Args:
        folders: What comes first on the path, the release before what stands beside it.
        jobs: As above: patch, module and text, at least.
        seed: Of what the contracts draw.

    Raises:
        ContractError: The process ended before all jobs were done.

    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    beside = str(Path(contract_runs.__file__).parent)
    path = os.pathsep.join([*map(str, folders), beside, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Each has its time, and what they import first has that of one.
    seconds = PATIENCE * (len(jobs) + 1)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, seed],
            input="".join(json.dumps(job) + "\n" for job in jobs),
            env={**clean, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OVERLAY_LOG": "off"},
            capture_output=True, text=True, check=False, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ContractError(f"no end within {seconds} s") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ContractError(said[-1])
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


# In the process that it starts ------------------------------------------------------------------------------


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


def outcome(job: list[str], seed: str) -> tuple[str, str]:
    """Return the outcome of one contract in a fork."""
    found, why = forked(lambda: run(job, seed), PATIENCE)
    return (RAISES if found == CRASHED else found), why


def main(seed: str) -> None:
    """Run what comes in."""
    warnings.simplefilter("ignore")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    sys.path.insert(0, str(SCRIPTS))
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
        answers.write(json.dumps(outcome(job, seed)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
