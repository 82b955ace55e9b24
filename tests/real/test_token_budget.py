"""What the contract of `verl.strict-token-budget` leaves out: the order, and verl's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import SEED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.real

#: Divides drawn batches, and one by the functions of verl's workers: with overlay, and then as released.
PROGRAM = """
import inspect, json, random, sys
import overlay
from overlay.patches.verl.strict_token_budget.contract import divide, draw_case, make_batch

PATCHES = ["verl.strict-token-budget", "verl.fast-partitioner"]
overlay.enable(PATCHES, strict=True)
from tensordict.tensorclass import NonTensorData
from verl.protocol import DataProto
from verl.utils import seqlen_balancing

def workers():
    data = DataProto.from_dict(dict(make_batch([7] * 8, 7)))
    parts, _ = seqlen_balancing.prepare_dynamic_batch(data, max_token_len=8)
    found = {"prepare_dynamic_batch": [int(part.batch["attention_mask"].sum()) for part in parts]}
    try:
        from verl.workers.engine import utils
    except ImportError:  # of releases that want an older transformers
        return found
    settings = {
        "dynamic": {"max_token_len_per_gpu": 4, "sp_size": 2, "use_dynamic_bsz": True},
        "static": {"micro_batch_size_per_gpu": 2, "use_dynamic_bsz": False},
    }
    for name, values in settings.items():
        data = make_batch([7] * 8, None)
        for key, value in values.items():
            data[key] = NonTensorData(value)
        found[name] = [int(part["input_ids"].offsets()[-1]) for part in utils.prepare_micro_batches(data)[0]]
    return found

draw = random.Random(sys.argv[1])
known = inspect.signature(seqlen_balancing.rearrange_micro_batches).parameters
cases = [case for case in (draw_case(draw) for _ in range(300)) if known.keys() >= case["arguments"].keys()]
found = {"cases": [(case, divide(seqlen_balancing, case)) for case in cases], "ours": workers()}
overlay.disable()
print(json.dumps({**found, "released": workers()}))
"""


@pytest.mark.parametrize("version", ["0.7.0", "0.9.0"])
def test_micro_batches_are_in_order_and_the_workers_of_the_release_get_them(
    version: str, listed: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> None:
    found = findings(listed(f"verl=={version}"), PROGRAM, SEED)
    for case, result in found["cases"]:
        if "error" in result:
            continue
        work = [24576 * length + length**2 for length in case["lengths"]]
        costs = [sum(work[sample] for sample in samples) for samples in result["indices"]]
        # Where it is asked for, the smallest are at both ends.
        both_ends = case["arguments"].get("use_dynamic_bsz_balance", True)
        middle = (len(costs) + 1) // 2 if both_ends else 0
        assert costs[:middle] == sorted(costs[:middle])
        assert costs[middle:] == sorted(costs[middle:], reverse=True)
    ours, released = found["ours"], found["released"]
    assert ours["prepare_dynamic_batch"] == [7] * 8
    assert ("dynamic" in ours) == (version == "0.9.0")
    if "dynamic" in ours:
        assert ours["dynamic"] == [7] * 8
        assert 14 in released["dynamic"], "upstream alone holds the bound: the patch has had its day"
        # Static batch sizes are left alone.
        assert ours["static"] == released["static"] == [14] * 4
