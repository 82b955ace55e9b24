"""What stacks above Megatron replace themselves, and what comes of both when they start.

Each name that a patch replaces too is one that is known: docs/stacks.md says what becomes of both. A stack
that assigns a function takes a patch's out, so somebody has to look at it: at a new patch here, at a new
release there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from listed_sources import Findings, Listed

from overlay.source.registry import load_patches
from sources import git_sources

pytestmark = pytest.mark.real

#: By stack, as the package index has it: what it replaces of Megatron's that a patch replaces too.
SHARED = {
    # The first by a function that does nothing: there is no loss of Megatron's left to scale. The second for
    # the resume of an optimizer on the CPU.
    "skyrl==0.3.0": {"process_mtp_loss", "_update_fp32_params_by_new_state"},
    # While an optimizer is built. The patch also begins with the function that calls it. `forward_step` is an
    # attribute of trainers of its own.
    "ms-swift==4.5.2": {"_get_param_groups", "forward_step"},
    "areal==1.0.4": set(),
}
#: The names that patches replace in Megatron-Core, without those that any class has.
OURS = {
    site.rpartition(":")[2].rpartition(".")[2]
    for patch in load_patches().values()
    for target in patch.targets
    if target.project.name == "megatron-core"
    for site in target.replaced()
} - {"__init__", "forward", "backward"}


def assigned(folder: Path) -> Iterator[str]:
    """Yield each attribute that code beside Megatron sets on something other than its own `self`."""
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        for node in ast.walk(ast.parse(text)) if "megatron" in text else ():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self":
                    yield target.attr
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
                yield from (str(one.value) for one in node.args[1:2] if isinstance(one, ast.Constant))


@pytest.mark.parametrize("stack", SHARED)
def test_what_a_stack_replaces_of_what_patches_replace_is_known(stack: str, listed: Listed) -> None:
    found = set(assigned(listed(stack)))
    # What is looked for would be found.
    assert len(found) > 20
    assert found & OURS == SHARED[stack]


#: How a stack is started: its Megatron, its source if that is elsewhere, and the patch that it takes out.
STARTED = {
    "miles": ("miles-rl==0.0.2", "", ""),
    "bridge": ("Megatron-Bridge 0.6.0", "v0.6.0", ""),
    "roll": ("ROLL main", "8eb27cc2d", "megatron.offloaded-resume"),
}


@pytest.mark.nightly("two stacks are in no package index, and none is started by day")
@pytest.mark.parametrize("stack", STARTED)
def test_a_stack_starts_alike_in_both_orders(stack: str, listed: Listed, findings: Findings) -> None:
    megatron, revision, taken = STARTED[stack]
    folder = listed(megatron)
    try:
        source = (
            git_sources.fetch(stack, revision) / git_sources.UPSTREAMS[stack].paths[0] if revision else ""
        )
    except git_sources.FetchError as error:
        pytest.skip(str(error))
    found = findings(folder, "stack_start.py", stack, str(source))
    without, first, last = (found[order] for order in ("without", "overlay first", "stack first"))
    assert without["norm"] > 0
    for one in (first, last):
        assert [one[name] for name in ("loss", "norm", "digest")] == [
            without[name] for name in ("loss", "norm", "digest")
        ]
        assert sum(state == "applied" for state in one["states"].values()) > 10
        assert not set(one["states"].values()) & {"failed", "reverted"}
    # What the stack replaces is said, in both orders.
    incomplete = {patch for patch, state in first["states"].items() if state == "incomplete"}
    assert incomplete == ({taken} if taken else set())
    assert {patch for patch, state in first["states"].items() if state != last["states"][patch]} == incomplete
