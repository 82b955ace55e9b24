"""Run with a slime first on the path: prints what contracts find there, without patches and with each alone.

    python slime_silent_check.py SEED PATCH...

The last line is JSON: by patch, what its contract's `wrong` says of slime alone, and what its `check` says.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import sys

from overlay.catalogue.registry import load_patches, module_of

#: What takes long to import, and nothing changes.
_BEFORE = ("torch", "megatron.core", "ray", "tensordict")

#: What is said of a contract that raised: that is no finding.
RAISED = "raised"


def found(job: tuple[str, str, str]) -> str:
    """Return what a function of a contract says, in a process that is fit for nothing else afterwards."""
    patch, function, seed = job
    contract = importlib.import_module(f"{module_of(patch)}.contract")
    try:
        return str(getattr(contract, function)(seed))
    except Exception as error:  # noqa: BLE001 -- whatever it is, the test judges it
        return f"{RAISED} {type(error).__name__}: {error}"


def main(seed: str, *patches: str) -> None:
    """Print it."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    answers, sys.stdout = sys.stdout, sys.stderr
    load_patches()
    for name in _BEFORE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    jobs = [(patch, function, seed) for patch in patches for function in ("wrong", "check")]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        said = pool.map(found, jobs, chunksize=1)
    pairs = zip(said[::2], said[1::2], strict=True)
    answers.write(json.dumps({patch: list(pair) for patch, pair in zip(patches, pairs, strict=True)}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
