"""What `megatron.dynamic-cp-names` is held to: groups of each size, attention in the right one."""

from typing import Any

from overlay.patch import Contract

ROTARY = ("rope", "rope, fused", "te, shared", "te, alone")


def check(seed: str) -> str:
    """There is a group of each size until it is destroyed, and attention is in that of its micro-batch."""
    from overlay.compat.ranks.findings import fault_of_training, on_ranks

    found = on_ranks(seed, f"{__name__}.cases", ("start", "settings", "warm up", "destroy", *ROTARY), te=True)
    if isinstance(found, str):
        return found
    expected: dict[str, list[dict[str, Any]]] = {
        "start": [{"groups": {"1": [rank], "2": [0, 1]}} for rank in range(2)],
        "settings": [{"ranks": 2, "cap": 6}] * 2,
        "warm up": [{"sizes": [2]}] * 2,
        "destroy": [{"left": []}] * 2,
    }
    for name, rows in expected.items():
        if found[name] != rows:
            return f"{name}: {found[name]}"
    for name in ROTARY:
        if wrong := fault_of_training(found[name]):
            return f"{name}: {wrong}"
    told = [row["told"] for row in found["rope, fused"]]
    groups = [[(row["set"], row["left in"]) for row in found[name]] for name in ROTARY[2:]]
    if told != [[2], [2]] or groups != [[([2, 1], 1)] * 2, [([0, 1], 1)] * 2]:
        return f"the groups of attention: {told}, {groups}"
    return ""


CONTRACT = Contract(check=check, starts=True)
