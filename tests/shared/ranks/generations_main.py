"""What torchrun starts on every process of a job whose ranks are replaced: trains a step in each generation.

Arguments: the module's name, and a folder. A module has `GENERATIONS`, the processes of each world in turn,
and `case(number)`, which each of them runs in it. A process that is not of a world waits for the next.
"""

from __future__ import annotations

import overlay
from overlay.compat.ranks import quick_rank

overlay.enable()  # what, and how strictly, says the environment: as on the ranks of a real job

import faulthandler  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402

from overlay.compat.no_triton import no_triton  # noqa: E402

with no_triton():
    from overlay.compat import cpu_engine

import torch.distributed as dist  # noqa: E402

from overlay.compat.cuda_on_cpu import cuda_on_cpu  # noqa: E402


def main(module: str, folder: Path) -> None:
    """Run the case in every world that this process is of, and write what it returned or raised."""
    process = int(os.environ["RANK"])
    cases = importlib.import_module(module)
    with (folder / f"rank{process}.jsonl").open("w", encoding="utf-8") as report, cuda_on_cpu():
        for number, members in enumerate(cases.GENERATIONS):
            if process not in members:
                continue
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/world{number}",
                rank=members.index(process),
                world_size=len(members),
                timeout=timedelta(seconds=90),
            )
            with cpu_engine.parallel_state():
                try:
                    result = cases.case(number)
                except Exception as error:  # noqa: BLE001 - whatever it is, the test judges it
                    result = {"error": type(error).__name__, "message": str(error)}
            report.write(json.dumps([str(number), result]) + "\n")
            report.flush()
            dist.destroy_process_group()


def start(arguments: list[str]) -> None:
    """Be a process, to its end."""
    faulthandler.enable()
    main(arguments[0], Path(arguments[1]))
    quick_rank.leave()


if __name__ == "__main__":
    start(sys.argv[1:])
