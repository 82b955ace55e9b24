"""What every rank does: slime's real `get_data_iterator` on Megatron's real groups, under gloo.

Arguments: a name that is not used, and a folder. What each rank made of each case of `cases_of` is written
there, in the form of `overlay.compat.ranks.engine_main`.
"""

from __future__ import annotations

import overlay

overlay.enable()  # what, and how strictly, says the environment: as on the ranks of a real job

import faulthandler  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402

import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent))

from slime_layouts import LAYOUTS, cases_of  # noqa: E402

from overlay.compat.cuda_on_cpu import cuda_on_cpu  # noqa: E402
from overlay.compat.slime_on_cpu import import_slime  # noqa: E402
from overlay.compat.slime_on_cpu.splits import split  # noqa: E402


def main(folder: Path) -> None:
    """Split the rollouts, one layout after the other, and write what came of each."""
    (data,) = import_slime("data")
    with (folder / f"rank{os.environ['RANK']}.jsonl").open("w", encoding="utf-8") as report:
        for layout in LAYOUTS:
            mpu.initialize_model_parallel(
                pipeline_model_parallel_size=layout["pipeline"],
                virtual_pipeline_model_parallel_size=layout["stages"] if layout["stages"] > 1 else None,
                context_parallel_size=layout["context"],
                create_gloo_process_groups=False,
            )
            rank = mpu.get_data_parallel_rank(with_context_parallel=False)
            for given in cases_of(layout, os.environ["OVERLAY_TEST_SEED"]):
                found = {"rank": rank, "split": split(data, given, rank)}
                report.write(json.dumps([given["name"], found]) + "\n")
                report.flush()
            dist.barrier()
            mpu.destroy_model_parallel()


def start(arguments: list[str]) -> None:
    """Be a rank, to its end."""
    faulthandler.enable()
    warnings.simplefilter("ignore")
    with cuda_on_cpu():
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        main(Path(arguments[1]))
        dist.destroy_process_group()


if __name__ == "__main__":
    start(sys.argv[1:])
