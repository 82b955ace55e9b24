"""A process that has imported an upstream before it enables overlay, strictly."""

from __future__ import annotations

import pytest
from command_line import python
from listed_sources import Findings, Listed

pytestmark = pytest.mark.real

PROGRAM = """
from overlay.compat.verl_imports import stand_in
stand_in()
import verl.workers.engine_workers  # which hands one of its workers to Ray at import

import overlay
overlay.enable("verl.fast-partitioner", strict=True)
print(*sorted(patch.patch for patch in overlay.status().patches if patch.state == "applied"))
"""


def test_what_ray_has_wrapped_at_import_is_no_fault() -> None:
    done = python("-W", "ignore", "-c", PROGRAM, seconds=300, OVERLAY_PATCHES="none")
    assert "verl.agreement" in done.stdout.split(), done.stderr[-4000:]


PROBES = """
import json, tempfile
from overlay.compat.slime_on_cpu import imported
groups = imported("slime.utils.reloadable_process_group")
import torch
import torch.distributed as dist
import overlay

def probes():
    asked.clear()
    for _ in range(128):
        dist.all_reduce(torch.ones(1))
    return len(asked)

asked = []
torch.cuda.current_device = lambda: 0
torch.cuda.mem_get_info = lambda _: asked.append(1) or (80 * 2**30, 80 * 2**30)
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    groups.monkey_patch_torch_dist()
    found = {"before": probes()}
    overlay.enable("slime.memory-probe", strict=True)
    found["enabled"] = probes()
    overlay.disable()
    found["disabled"] = probes()
    dist.destroy_process_group()
print(json.dumps(found))
"""


def test_what_slime_has_given_torch_asks_for_memory_as_the_patch_says(
    listed: Listed, findings: Findings
) -> None:
    found = findings(listed("slime==v0.3.1"), PROBES)
    assert found == {"before": 128, "enabled": 2, "disabled": 128}
