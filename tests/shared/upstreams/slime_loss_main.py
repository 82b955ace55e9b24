"""What every rank of slime does: runs the cases of a module, one after the other.

Arguments: the module's name, and a folder. A module has `cases(world)`, which returns an ordered list of
(name, tensor parallel size, context parallel size, function). A function is run on all ranks and returns
something that JSON can hold. The revision of slime stands first on PYTHONPATH.
"""

from __future__ import annotations

import overlay

overlay.enable()  # what, and how strictly, says the environment: as on the ranks of a real job

import faulthandler  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402

#: Seconds after which a collective that not all ranks enter is an error.
TIMEOUT = float(os.environ.get("COLLECTIVE_TIMEOUT", "40"))


def main(module: str, folder: Path) -> None:
    """Run the cases, and write what each of them returned or raised. A collective that failed ends it."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    with (folder / f"rank{dist.get_rank()}.jsonl").open("w", encoding="utf-8") as report:
        layout: tuple[int, int] | None = None
        for name, tensor, context, case in importlib.import_module(module).cases(dist.get_world_size()):
            if layout != (tensor, context):
                if layout:
                    mpu.destroy_model_parallel()
                layout = tensor, context
                mpu.initialize_model_parallel(
                    tensor,
                    context_parallel_size=context,
                    create_gloo_process_groups=False,
                    distributed_timeout_minutes=TIMEOUT / 60,
                )
            result = _result(case)
            report.write(json.dumps([name, result]) + "\n")
            report.flush()
            if "trace" in result:
                # The ranks of a job outlive one that failed: what waits for it then waits for good.
                _wait_for_all(folder, name)
                break


def _wait_for_all(folder: Path, name: str) -> None:
    """Wait until every rank has told what it found in a case, or should have given up long ago."""
    reports = [folder / f"rank{rank}.jsonl" for rank in range(dist.get_world_size())]
    start, end = json.dumps([name])[:-1], time.monotonic() + TIMEOUT + 5
    while time.monotonic() < end:
        told = [path.read_text(encoding="utf-8").splitlines() for path in reports if path.exists()]
        if sum(any(line.startswith(start) for line in lines) for lines in told) == len(reports):
            return
        time.sleep(0.1)


def _result(case: Any) -> Any:
    try:
        return case()
    except (NotImplementedError, ValueError, AssertionError) as error:
        return {"error": type(error).__name__, "message": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it is, the test judges it
        import traceback

        return {"error": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}


def start(arguments: list[str]) -> None:
    """Be a rank, to its end."""
    faulthandler.enable()
    main(arguments[0], Path(arguments[1]))
    sys.stdout.flush()
    # Groups that some rank has left for good do not let themselves be destroyed.
    os._exit(0)


if __name__ == "__main__":
    start(sys.argv[1:])
