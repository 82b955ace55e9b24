"""What `verl.offload-shared-storage` is held to: no value is lost, and memory is freed as early as ever."""

from __future__ import annotations

import overlay
from overlay.patch import Contract
from overlay.testing import assert_applied, enable

PATCH = "verl.offload-shared-storage"


def check(seed: str) -> str:
    """Offload drawn models with the patch, and then as this very upstream does."""
    from overlay.patches.verl.offload_shared_storage.contract.offloading import import_verl, look

    enable(PATCH)
    module = import_verl()
    assert_applied(PATCH)
    ours = look(module, seed, 20)
    overlay.disable()
    theirs = look(module, seed, 20)
    if ours["lost"] or ours["again"]["lost"]:
        return "values were lost"
    return "" if ours["live"] == theirs["live"] else "memory is freed at another time"


CONTRACT = Contract(check=check, before=("verl.protocol",))
