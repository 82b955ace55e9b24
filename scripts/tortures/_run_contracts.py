"""Started with a release first on the path: runs contracts, each in a fork with one module changed.

    python _run_contracts.py SEED SECONDS < JOBS

A job is a line of JSON, `[patch, module, text]`; without a module nothing is changed. Prints a line of JSON
for each, `[outcome, what was said]`. What takes long to import is imported once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCRIPTS = Path(__file__).resolve().parents[1]

HOLDS, RAISES, WRONG, NO_END = "holds", "raises", "wrong", "no end"


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


def run(patch: str, module: str, text: str, seed: str) -> tuple[str, str]:
    """Return the outcome of one contract in this process, which is not fit for another afterwards."""
    from tortures._contracts import CONTRACTS
    from tortures._on_disk import on_disk

    contract = CONTRACTS[patch]
    changed: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if module and contract.starts:
        changed = on_disk(module, text)
    elif module:
        sys.meta_path.insert(0, _Finder(module, text))
    try:
        with changed:
            wrong = contract.check(seed)
    except Exception as error:  # noqa: BLE001 -- what it is does not matter: it is said
        return RAISES, f"{type(error).__name__}: {error}"[:300]
    return (WRONG, wrong[:300]) if wrong else (HOLDS, "")


def forked(job: list[str], seed: str, seconds: int) -> tuple[str, str]:
    """Return the outcome of one contract in a fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(seconds)
        with contextlib.suppress(BaseException):
            os.write(writer, json.dumps(run(*job, seed)).encode())  # type: ignore[call-arg]
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    if said:
        outcome, why = json.loads(said)
        return outcome, why
    return (NO_END, f"not within {seconds} s") if status == signal.SIGALRM else (RAISES, f"status {status}")


def main(seed: str, seconds: int) -> None:
    """Run what comes in."""
    warnings.simplefilter("ignore")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    sys.path[:0] = [str(SCRIPTS), *(str(SCRIPTS / "checks" / name) for name in ("upstreams", "ranks"))]
    from tortures._contracts import CONTRACTS

    # What a module says as it is imported is not an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    import torch

    torch.set_num_threads(1)
    jobs = [json.loads(line) for line in sys.stdin]
    for name in dict.fromkeys(name for job in jobs for name in CONTRACTS[job[0]].before):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    here = {module for patch, module, _ in jobs if not CONTRACTS[patch].starts}
    if early := sorted(here & sys.modules.keys()):
        sys.exit(f"imported before it was changed: {', '.join(early)}")
    for job in jobs:
        answers.write(json.dumps(forked(job, seed, seconds)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
