"""No value is lost, and memory is freed as early as ever (`offloading` offloads drawn models)."""

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
    if ours["live"] != theirs["live"] or ours["left"]:
        return "memory is freed at another time"
    # A word on what stays on the device, and none on what was never there.
    said = [said for said in ours["said"] if "bytes on cuda:0 are not freed" not in said]
    return f"of what is kept it says {said}" if said or ours["again"]["said"] else ""


CONTRACT = Contract(check=check, before=("verl.protocol",))
