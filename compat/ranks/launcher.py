"""Starts real ranks, runs cases on them, and brings back what each rank found.

What a program and its cases import is most of what its ranks would do, each for itself. So this file is a
program too, which imports that once and then forks: `launcher.py RANKS PROGRAM MODULE FOLDER [CASE...]`.
PROGRAM has `start(arguments)`, which is what it does as a rank. MODULE may have a function `warm`, which
imports what only its cases ask for. With `torchrun` ranks are started as those of a real job are.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overlay.compat.ranks.warm import Program
from overlay.model.settings import in_company, is_alone

HERE = Path(__file__).parent
#: What dynamic context parallelism takes.
PATCHES = "verl.dynamic-cp-loss,megatron.dynamic-cp-names"


def run_cases(
    world: int,
    module: str | Path,
    folder: Path,
    *,
    overlay: bool = True,
    patches: str = PATCHES,
    program: str = "engine_main.py",
    release: Path | None = None,
    te: bool | str = False,
    only: Sequence[str] = (),
    torchrun: bool = False,
    timeout: float = 420.0,
) -> dict[str, list[Any]]:
    """Run the cases of a module on `world` ranks.

    Args:
        world: Number of ranks.
        module: The name of a module, or the path of one whose folder is to be on the ranks' path, with
            `cases(world)` (see `engine_main`).
        folder: Where the ranks write.
        overlay: Whether overlay is enabled on the ranks.
        patches: Which of its patches, if it is.
        program: The file beside this one that each rank runs.
        release: A folder that comes first on the ranks' path.
        te: Whether there is a stand-in for Transformer Engine, or the version that it stands for.
        only: Names of the cases that are run (of `engine_main`), if not all.
        torchrun: Whether each rank is a process that torchrun starts, and that imports for itself.
        timeout: Seconds until all ranks are killed. A hang is a failure, never a wait.

    Returns:
        For each case that was started, what each rank returned: `{"error": ...}` if it raised, and `None` if
        it did not come back.

    Raises:
        RuntimeError: The ranks ended before any had run a case. With what they said.
        TimeoutError: They did not end, and none had run one.

    """
    name = module.stem if isinstance(module, Path) else module
    starter = [__file__, str(world)]
    if torchrun:
        starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    arguments = [*starter, str(HERE / program), name, str(folder), *only]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OVERLAY_STRICT": "1", "HYDRA_FULL_ERROR": "1"}
    # verl compiles a product and a sum for the entropy. Nothing that is tested here depends on that.
    environment["TORCHDYNAMO_DISABLE"] = "1"
    if in_company():  # some of what `all` selects may not apply here
        patches, environment["OVERLAY_STRICT"] = f"all,{patches}", "0"
    environment["OVERLAY_PATCHES"] = patches if overlay and not is_alone() else "none"
    if te:
        environment["TE_STAND_IN"] = te if isinstance(te, str) else "1"
    first = [release, module.parent if isinstance(module, Path) else None, os.environ.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in first if path)
    log = folder / "log.txt"
    with log.open("wb") as stream:
        process = Program(arguments, environment, stream, stream, own=torchrun)
        try:
            ended = process.has_ended(timeout)
        finally:
            # All ranks are of one session: nothing of it outlives the test, whoever of it has ended.
            process.end()
    found = _read(world, folder)
    if not found:
        if not ended:
            raise TimeoutError(f"no rank came back from the first case within {timeout:g} s")
        message = f"no rank has come as far as the first case:\n{log.read_text(errors='replace')[-4000:]}"
        raise RuntimeError(message)
    if any(None in rows for rows in found.values()):
        # Whoever asserts that all came back fails beside this.
        sys.stderr.write(log.read_text(errors="replace")[-4000:])
    return found


def _read(world: int, folder: Path) -> dict[str, list[Any]]:
    """Return what the ranks wrote, by case."""
    found: dict[str, list[Any]] = {}
    for rank in range(world):
        path = folder / f"rank{rank}.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            name, result = json.loads(line)
            found.setdefault(name, [None] * world)[rank] = result
    return found


def main(arguments: list[str]) -> int:
    """Import, fork, and return the greatest of the exit statuses of the ranks."""
    ranks, path, *rest = arguments
    program_path = Path(path)
    sys.path[0] = str(program_path.parent)
    sys.argv = [path, *rest]
    # Overlay first, as the program wants it; what is below imports torch.
    program = importlib.import_module(program_path.stem)
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
