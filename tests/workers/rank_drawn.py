"""Started on every rank of the worksite: jobs as they are drawn, each of which is compared.

All ranks draw the same jobs from `OVERLAY_TEST_SEED`: whether each imports the module that is patched, and
when, how late it comes, where a wrapper of the user's stands, and what is wrong with one of them. Prints of
each job what is wrong, whether that is this rank, and what it raised.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import overlay

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
#: The silent rank comes last: it has compared once less than the others, and would be out of step with them.
FAULTS = ("selection", "strict", "option", "wrapper", "disabled", "silent")
#: How many jobs are healthy, and seconds for which a rank is waited for that does not come.
HEALTHY, SHORT = 6, 5.0


class Drawn:
    """One job, as this rank has it."""

    def __init__(self, number: int) -> None:
        draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/{number}")
        self.fault = FAULTS[number - HEALTHY] if number >= HEALTHY else ""
        self.odd = draw.randrange(WORLD) == RANK and bool(self.fault)
        places = [draw.choice(["never", "first", "last"]) for _ in range(WORLD)]
        wrapped = draw.random() < 0.5
        self.place = places[RANK] if self.fault not in ("wrapper", "selection") else "last"
        self.wrapped = self.odd if self.fault == "wrapper" else wrapped and self.fault != "strict"
        self.late = [draw.random() / 2 for _ in range(WORLD)][RANK]

    def compare(self) -> str:
        """Import, enable and compare, and return what is raised."""
        os.environ["OVERLAY_LOSS_KERNEL"] = "triton" if self.fault == "option" and self.odd else "blocks"
        if self.place == "first":
            importlib.import_module("fakeup.core")  # the wrapper comes after overlay on all ranks
        if self.fault != "disabled" or not self.odd:
            chosen = "none" if self.fault == "selection" and self.odd else None
            overlay.enable(chosen, strict=self.fault == "strict" and self.odd)
        if self.place != "never":
            module: Any = importlib.import_module("fakeup.core")
            if self.wrapped:
                space: dict[str, Any] = {"inner": module.scale}
                # As if it came from a folder that each node has for itself.
                code = compile("def scale(*a, **k): return inner(*a, **k)", f"/node{RANK}/x.py", "exec")
                exec(code, space)  # noqa: S102
                module.scale = space["scale"]
        time.sleep(self.late)
        if self.fault == "silent" and self.odd:
            return ""
        try:
            overlay.agree(timeout=SHORT if self.fault == "silent" else None)
        except overlay.AgreementError as error:
            return str(error)
        return ""


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    found = []
    for number in range(HEALTHY + len(FAULTS)):
        job = Drawn(number)
        said = job.compare()
        found.append({"fault": job.fault, "odd": job.odd, "said": said})
        overlay.disable()
        for name in [name for name in sys.modules if name.partition(".")[0] == "fakeup"]:
            del sys.modules[name]
        dist.barrier()
    sys.stdout.write("\n" + json.dumps({"jobs": found}) + "\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
