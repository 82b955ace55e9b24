"""Divide drawn batches with the verl that is first on the path, and print what came of it as JSON.

    python token_budget_check.py SEED COUNT

First with overlay, then, after `overlay.disable()`, as released.
"""

from __future__ import annotations

import inspect
import json
import random
import sys
from typing import Any

import overlay
from overlay.patches.verl.strict_token_budget.contract import divide, draw_case, make_batch

PATCHES = ["verl.strict-token-budget", "verl.fast-partitioner"]


def whole_way(seqlen_balancing: Any) -> dict[str, Any]:
    """Return the tokens of each micro-batch as the workers of this release get them."""
    import torch
    from verl.protocol import DataProto

    found: dict[str, Any] = {}
    batch = make_batch([7] * 8, 7)
    data = DataProto.from_dict(dict(batch))
    parts, _ = seqlen_balancing.prepare_dynamic_batch(data, max_token_len=8)
    found["prepare_dynamic_batch"] = [int(part.batch["attention_mask"].sum()) for part in parts]
    try:
        from verl.workers.engine import utils
    except ImportError as error:
        # Releases that want an older transformers. Their workers call what has been called above.
        return {**found, "skipped": str(error)}
    from tensordict.tensorclass import NonTensorData

    assert utils.rearrange_micro_batches is seqlen_balancing.rearrange_micro_batches
    batch = make_batch([7] * 8, None)
    settings = {"max_token_len_per_gpu": 4, "sp_size": 2, "use_dynamic_bsz": True}
    static = {"micro_batch_size_per_gpu": 2, "use_dynamic_bsz": False}
    for name, values in (("dynamic", settings), ("static", static)):
        data = batch.clone()
        for key, value in values.items():
            data[key] = NonTensorData(value)
        parts, _ = utils.prepare_micro_batches(data)
        assert all(isinstance(part["input_ids"], torch.Tensor) for part in parts)
        found[name] = [int(part["input_ids"].offsets()[-1]) for part in parts]
        found[f"{name} rows"] = [[int(row[0]) for row in part["input_ids"].unbind()] for part in parts]
    return found


def main(seed: str, count: int) -> None:
    """Print all findings."""
    overlay.enable(PATCHES)
    from verl.utils import seqlen_balancing

    draw = random.Random(seed)
    cases = [draw_case(draw) for _ in range(count)]
    known = inspect.signature(seqlen_balancing.rearrange_micro_batches).parameters
    found: dict[str, Any] = {
        "path": seqlen_balancing.__file__,
        "cases": [
            (case, divide(seqlen_balancing, case))
            for case in cases
            if known.keys() >= case["arguments"].keys()
        ],
        "overlay": whole_way(seqlen_balancing),
    }
    found["states"] = {patch.patch: patch.state for patch in overlay.status().patches}
    overlay.disable()
    found["released"] = whole_way(seqlen_balancing)
    found["issue"] = [
        divide(seqlen_balancing, {"lengths": lengths, "width": None, "arguments": {"max_token_len": cap}})
        for lengths, cap in (([7] * 8, 8), ([30720] * 16, 32768))
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
