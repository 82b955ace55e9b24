"""Enable overlay in strict mode in one image, with no other upstream installed, and import what is patched.

    python -S image_check.py < JOBS

A job is a line of JSON, `[folder, selection]`; without a selection everything is selected. Each is run in a
fork with the folder first on the path. Prints a line of JSON for each: what was decided before anything of
the image was imported, what the ledger says afterwards, where the modules lie, and how often ranks were
compared.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import typing
from pathlib import Path
from typing import Any

import typing_extensions

#: Megatron compiles its activations. Nothing that is looked at here depends on that, and it takes a compiler.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
sys.path.append(str(Path(__file__).resolve().parents[1] / "engine"))

from forked import in_a_child

#: What takes long to import and belongs to no image.
BEFORE = (
    "torch", "torch._dynamo", "torch.distributed.nn", "torch.distributed.checkpoint",
    "torch.distributed.fsdp", "torch.utils.tensorboard", "ray", "tensordict", "transformers", "pandas",
    "wandb", "peft", "hydra", "setuptools",
)  # fmt: skip


def modules(plan: Any) -> list[str]:
    """Return the modules that a plan puts something into, in the order of their names."""
    from overlay.source.registry import load_patches

    found = set()
    for verdict in plan.verdicts:
        if verdict.verdict == "apply":
            chosen = {target.project: target.variant for target in verdict.targets}
            found |= {
                replacement.site.partition(":")[0]
                for target in load_patches()[verdict.patch].targets
                for variant in target.variants
                if chosen.get(target.project.name) == variant.name
                for replacement in variant.replacements
            }
    return sorted(found)


def look(selection: str) -> dict[str, Any]:
    """Enable overlay, import what it is to patch, and start Megatron on one rank."""
    import overlay

    chosen = selection or None
    plan = overlay.plan(chosen)
    found: dict[str, Any] = {
        "plan": {one.patch: one.verdict for one in plan.verdicts if one.verdict != "not-selected"},
        "error": "",
        "compared": [],
    }
    try:
        overlay.enable(chosen, strict=True)
        found["files"] = imported(modules(plan), found["compared"])
    except Exception as error:  # noqa: BLE001 -- the test judges it
        found["error"] = f"{type(error).__name__}: {error}"
        found["trace"] = traceback.format_exc()[-3000:]
    found["ledger"] = {one.patch: one.state for one in overlay.status().patches}
    return found


def imported(names: list[str], compared: list[bool]) -> dict[str, str]:
    """Import modules with what they need stood in for, initialise Megatron, and return their files."""
    from importlib.util import find_spec

    import torch.distributed as dist

    import overlay
    import overlay.compat.agreement as ours
    from overlay.compat import verl_imports
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.no_triton import no_triton
    from overlay.compat.slime_on_cpu import stand_in
    from overlay.patches.verl.lora_own_memory.contract import import_worker
    from overlay.patches.verl.mooncake_mark.contract import import_engine as import_mooncake
    from overlay.patches.verl.weight_transfer_order.contract import import_engine

    # Megatron's trainer takes what Python has from 3.12 on.
    vars(typing).setdefault("override", typing_extensions.override)
    with cuda_on_cpu(), no_triton():
        from megatron.core import parallel_state

        if any(name.startswith("verl.") for name in names):
            verl_imports.stand_in()
            verl_imports.stand_in_for("openai")
        if find_spec("slime"):
            stand_in()
            # All of them have these, patched or not.
            names = [*names, *(f"slime.backends.megatron_utils.{name}" for name in ("data", "loss"))]
        if find_spec("miles"):
            names = [*names, "miles.backends.training_utils.loss"]
        for name in names:
            if name.endswith(".nccl_checkpoint_engine"):
                import_engine()
            if name.endswith(".mooncake_checkpoint_engine"):
                import_mooncake()
            if name.endswith((".vllm_rollout.utils", ".vllm_async_server")):
                import_worker()
            if name.endswith(".vllm_async_server"):
                vars(importlib.import_module("vllm"))["__version__"] = "0.17.0"
                package = importlib.import_module(name.rpartition(".")[0])
                vars(package).setdefault("vLLMAsyncRollout", typing.NamedTuple)
            importlib.import_module(name)

        def agree(*_: Any) -> None:
            compared.append(parallel_state.model_parallel_is_initialized())

        # Of one rank there is nothing to compare, and this asks whether it would.
        ours.is_distributed = lambda: True
        overlay.agree = agree  # type: ignore[assignment]
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        parallel_state.initialize_model_parallel()
        return {name: str(sys.modules[name].__file__) for name in [*names, parallel_state.__name__]}


def forked(folder: str, selection: str) -> dict[str, Any]:
    """Return what is found in a fork with a folder first on the path."""

    def work() -> dict[str, Any]:
        sys.path.insert(0, folder)
        # An image is imported for each selection, and compiled once.
        sys.dont_write_bytecode = False
        return look(selection)

    found = in_a_child(work, 600)
    return {"error": found["wrong"][0]} if "wrong" in found else found


def main() -> None:
    """Run what comes in."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for name in BEFORE:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        answers.write(json.dumps(forked(*json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
