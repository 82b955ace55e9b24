"""`capped-partitions` on rollouts of a realistic size, in slime 0.3's and miles' own `build_dp_schedule`.

Its contract asks of small ones whether they hold the budget.
"""

from __future__ import annotations

import pytest
from checks import SEED
from listed_sources import Findings, Listed

pytestmark = pytest.mark.real

#: Of schedules of 512 samples on 8 ranks: the FLOPs of micro-batches, and how many are over the budget.
PROGRAM = """
import importlib, json, sys
from types import SimpleNamespace
import overlay
from overlay.compat.slime_on_cpu import stand_in
from overlay.compat.slime_on_cpu.schedules import MODEL, cases, over, parts_of, schedule

seed, package = sys.argv[1:]
overlay.enable([f"{package}.capped-partitions"], strict=True)
stand_in(package)
module = importlib.import_module(f"{package}.utils.dp_schedule")
flops = importlib.import_module(f"{package}.utils.flops_utils").calculate_fwd_flops
large = [one for one in cases(seed) if len(one["lengths"]) == 512]

def look(**options):
    found = []
    for one in large:
        made = schedule(module, one, **options)
        work = [flops([length], SimpleNamespace(**MODEL)) for length in one["lengths"]]
        costs = [sum(work[index] for index in part) for part in parts_of(made)]
        found.append({"costs": costs, "over": over(one, made)})
    return found

report = {"ours": look()}
overlay.disable()
print(json.dumps({**report, "plain": look(), "by tokens": look(balance_by_flops=False)}))
"""


@pytest.mark.parametrize("name", ["slime==v0.3.1", "slime main", "miles main"])
def test_flops_stay_balanced_under_the_budget_in_no_more_micro_batches(
    name: str, listed: Listed, findings: Findings
) -> None:
    found = findings(listed(name), PROGRAM, SEED, name[:5])
    for mine, alone, by_tokens in zip(found["ours"], found["plain"], found["by tokens"], strict=True):
        assert mine["over"] == 0, SEED
        assert alone["over"] > 0, "upstream alone holds the budget: the patch has had its day"
        ours, plain, tokens = mine["costs"], alone["costs"], by_tokens["costs"]
        assert len(ours) <= len(tokens), SEED
        # The most is that of the longest sample or close to it, with a budget and without.
        assert max(ours) <= min(max(tokens), 1.05 * max(plain)), SEED
        assert min(ours) > max(min(tokens), 0.7 * sum(ours) / len(ours)), SEED
