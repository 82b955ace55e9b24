"""Save and load `fully_reshardable` checkpoints on data parallel ranks, with the Megatron first on the path.

    python reshardable_ranks.py SEED RANKS...

The last line is JSON: for each number of ranks, what all of them find of Megatron alone, and with the patch.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from overlay.compat import forked_ranks
from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.no_triton import no_triton
from overlay.testing import assert_applied, enable

PATCH = "megatron.reshardable-checkpoint"


def found(ranks: int, seed: str, *, alone: bool) -> list[str]:
    """Return what each rank finds, in no order."""
    reader, writer = os.pipe()

    def work() -> int:
        import torch.distributed as dist

        import overlay
        from overlay.compat.megatron_on_cpu import start_megatron
        from overlay.patches.megatron.reshardable_checkpoint.contract import saved_and_loaded

        if alone:
            overlay.disable()
        dist.init_process_group("gloo")
        start_megatron()
        os.write(writer, json.dumps(saved_and_loaded(seed)).encode() + b"\n")
        dist.destroy_process_group()
        return 0

    status = forked_ranks.run(ranks, work)
    os.close(writer)
    with os.fdopen(reader) as answers:
        said = [json.loads(line) for line in answers]
    if status or len(said) != ranks:
        msg = f"{len(said)} of {ranks} ranks ended well"
        raise RuntimeError(msg)
    return said


def main(seed: str, *counts: str) -> None:
    """Print it. What takes long to import is imported once, with the patch, which ranks may take out."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    enable(PATCH)
    with no_triton(), cuda_on_cpu():
        importlib.import_module("megatron.core.optimizer")
        importlib.import_module("megatron.core.distributed")
        assert_applied(PATCH)
        said = {count: [found(int(count), seed, alone=alone) for alone in (True, False)] for count in counts}
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
