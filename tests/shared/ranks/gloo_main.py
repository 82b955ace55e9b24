"""What every rank of a job without an engine does: runs the cases of a module, one by one.

Arguments: the module's name, and a folder. A module has `cases(world)`, which returns an ordered list of
(name, function). A function is run on all ranks and returns something that JSON can hold.
"""

from __future__ import annotations

import overlay
from overlay.compat.ranks import quick_rank

overlay.enable()  # what, and how strictly, says the environment: as on the ranks of a real job

import faulthandler  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402

import torch.distributed as dist  # noqa: E402


def main(module: str, folder: Path) -> None:
    """Run the cases, and write what each of them returned. One that raises ends its rank."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    with (folder / f"rank{dist.get_rank()}.jsonl").open("w", encoding="utf-8") as report:
        for name, case in importlib.import_module(module).cases(dist.get_world_size()):
            report.write(json.dumps([name, case()]) + "\n")
            report.flush()
    dist.destroy_process_group()


def start(arguments: list[str]) -> None:
    """Be a rank, to its end."""
    faulthandler.enable()
    main(arguments[0], Path(arguments[1]))
    quick_rank.leave()


if __name__ == "__main__":
    start(sys.argv[1:])
