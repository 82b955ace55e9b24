"""What every rank of a job with Megatron alone does: runs the cases of a module, one after the other.

Arguments: the module's name, and a folder. A module has `cases(world)`, which returns an ordered list of
(name, sizes, function): sizes by the keys of `KEYWORDS`. A function is run on all ranks in this layout and
returns something that JSON can hold.
"""

from __future__ import annotations

import overlay
from overlay.compat.ranks import quick_rank

overlay.enable()  # what, and how strictly, says the environment: as on the ranks of a real job

import importlib.util  # noqa: E402
import inspect  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from datetime import timedelta  # noqa: E402
from pathlib import Path  # noqa: E402

import torch.distributed as dist  # noqa: E402

from overlay.compat.cuda_on_cpu import cuda_on_cpu  # noqa: E402
from overlay.compat.no_triton import no_triton  # noqa: E402

quick_rank.te_stand_in()

if importlib.util.find_spec("slime") is not None:
    # slime's images: its diff of Megatron asks for modules of slime, and these for what is not installed.
    from overlay.compat.slime_on_cpu import stand_in

    stand_in()

with no_triton(), cuda_on_cpu():
    from megatron.core import parallel_state

#: What Megatron's keywords begin with.
KEYWORDS = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "virtual": "virtual_pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
}
#: Groups of gloo beside the usual ones are not needed here; before 0.12 Megatron makes none.
_SIGNATURE = inspect.signature(parallel_state.initialize_model_parallel)
WITHOUT_GLOO = {name: False for name in ("create_gloo_process_groups",) if name in _SIGNATURE.parameters}


def main(module: str, folder: Path, _only: list[str]) -> None:
    """Run the cases, and write what each of them returned or raised."""
    with (folder / f"rank{os.environ['RANK']}.jsonl").open("w", encoding="utf-8") as report, cuda_on_cpu():
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        layout = None
        for name, sizes, case in importlib.import_module(module).cases(dist.get_world_size()):
            if sizes != layout:
                parallel_state.destroy_model_parallel()
                keywords = {KEYWORDS[key]: size for key, size in sizes.items()}
                parallel_state.initialize_model_parallel(**WITHOUT_GLOO, **keywords)
                layout = sizes
            quick_rank.tell(report, name, case)
        dist.destroy_process_group()


def start(arguments: list[str]) -> None:
    """Be a rank, to its end."""
    quick_rank.be_a_rank(main, arguments)


if __name__ == "__main__":
    start(sys.argv[1:])
