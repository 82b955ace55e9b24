"""What a patch leaves behind: nothing that it keeps alive, and after `disable()` nothing at all.

Each patch is tried on the newest release that it is for. Its contract runs first, with the collector off.
Then neither the patch nor a cycle that it made holds a tensor, a module or an optimizer, and each replaced
function is pickled and copied as the original is. `disable()` leaves nothing of the patch in any module or
class, and brings upstream's defect back where the contract can be run again in the same process.
"""

from __future__ import annotations

import os

import pytest
from checks import SEED
from listed_sources import Findings, Listed
from test_contracts import NAMES  # type: ignore[import-not-found]

from overlay.source.registry import load_patches
from records import _support_print

pytestmark = pytest.mark.real

#: How many patches are looked at in one process at night. By day each of a few has its own.
TOGETHER = 4
DECIDED = _support_print.recorded()
#: Each patch on the newest release to which it applies, or in an image where it serves another project.
NEWEST = [
    (patch, next(name for name in (*NAMES, *reversed(DECIDED)) if DECIDED[name].get(patch) == "apply"))
    for patch in load_patches()
]

#: slime puts its own function there as it runs, with ours around it, which notes what a group is made with.
KNOWN = {"slime.group-timeouts": ["torch.distributed.new_group is left after disable()"]}
#: By day: patches that have left something behind, or that stand where much is compiled and copied.
BY_DAY = ("megatron.attention-logit-memory", "megatron.grad-norm", "verl.critic-loss-scale")


@pytest.mark.nightly(
    "a few stand for the others", patch=tuple(patch for patch, _ in NEWEST if patch not in BY_DAY)
)
@pytest.mark.parametrize(("patch", "release"), NEWEST)
def test_nothing_is_left_behind(patch: str, release: str, listed: Listed, findings: Findings) -> None:
    beside = [patch] if os.environ.get("TESTS_ONCE") else [one for one, name in NEWEST if name == release]
    first = beside.index(patch) // TOGETHER * TOGETHER
    found = findings(listed(release), "afterwards_check.py", SEED, *beside[first : first + TOGETHER])
    assert found[patch] == KNOWN.get(patch, []), SEED


COMPILED = """
import importlib, json, sys
import torch, torch._dynamo.testing
from overlay.compat.no_triton import no_triton
from overlay.testing import enable
from overlay.compat.verl_imports import stand_in

patch, module, call = sys.argv[1:]
if module.startswith("verl"):
    stand_in()
enable(patch)
with no_triton():
    space = vars(importlib.import_module(module))
graphs, x = [], torch.ones(2, 6)
called = eval("lambda x: " + call, {**space})
compiled = torch.compile(called, backend=lambda graph, _: graphs.append(1) or graph, fullgraph=True)
alike = True
for _ in range(torch._dynamo.config.recompile_limit + 4):
    ours, eager = compiled(x), called(x)
    pairs = zip(ours, eager) if isinstance(ours, tuple) else [(ours, eager)]
    alike = alike and all(map(lambda pair: torch.equal(*pair), pairs))
print(json.dumps({"graphs": len(graphs), "alike": alike}))
"""


@pytest.mark.nightly(
    "one patch stands for the others", patch=("megatron.mtp-without-tokens", "verl.critic-loss-scale")
)
@pytest.mark.parametrize(
    ("patch", "release", "module", "call"),
    [
        (
            "megatron.sigmoid-aux-scores", "megatron-core==0.16.1", "megatron.core.transformer.moe.moe_utils",
            "compute_routing_scores_for_aux_loss(x.bfloat16(), 2, 'sigmoid')",
        ),
        (
            "megatron.mtp-without-tokens", "megatron-core==0.16.1",
            "megatron.core.transformer.multi_token_prediction", "roll_tensor(x, shifts=-1, dims=-1)",
        ),
        (
            "verl.critic-loss-scale", "verl==0.8.0", "verl.trainer.ppo.core_algos",
            "agg_loss(x, x, 'token-mean')",
        ),
    ],
)  # fmt: skip
def test_a_patched_function_is_compiled_once(
    patch: str, release: str, module: str, call: str,
    listed: Listed, findings: Findings,
) -> None:  # fmt: skip
    found = findings(listed(release), COMPILED, patch, module, call)
    assert found == {"graphs": 1, "alike": True}
