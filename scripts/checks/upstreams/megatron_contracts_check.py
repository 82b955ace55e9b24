"""Run with a Megatron first on the path: prints what contracts find there, alone and with each patch.

    python megatron_contracts_check.py SEED PATCH...

The last line is JSON: by patch, what its contract's `wrong` says of Megatron alone, and what its `check`
says.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys

from overlay.catalogue.registry import load_patches, module_of

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
    importlib.import_module("torch")
    jobs = [(patch, function, seed) for patch in patches for function in ("wrong", "check")]
    said = []
    for job in jobs:
        # Not a pool: its processes are daemons, which may have no children, and some contracts fork.
        reader, writer = os.pipe()
        child = multiprocessing.get_context("fork").Process(target=_tell, args=(writer, job))
        child.start()
        os.close(writer)
        with os.fdopen(reader) as answer:
            said.append(answer.read() or f"{RAISED} nothing, and ended")
        child.join()
    pairs = zip(said[::2], said[1::2], strict=True)
    told = {
        patch: ["" if one == "\n" else one for one in pair]
        for patch, pair in zip(patches, pairs, strict=True)
    }
    answers.write(json.dumps(told) + "\n")


def _tell(writer: int, job: tuple[str, str, str]) -> None:
    with os.fdopen(writer, "w") as answer:
        answer.write(found(job) or "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
