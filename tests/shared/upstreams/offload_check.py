"""Offload drawn models with the verl that is first on the path, and print what came of it as JSON.

    python offload_check.py SEED COUNT

First with overlay, then, after `overlay.disable()`, as released. What is drawn and what is looked at is the
contract's.
"""

from __future__ import annotations

import json
import sys

import overlay
from overlay.patches.verl.offload_shared_storage.contract import PATCH
from overlay.patches.verl.offload_shared_storage.contract.offloading import import_verl, look


def main() -> None:
    """Print what is found with overlay and without."""
    seed, count = sys.argv[1], int(sys.argv[2])
    overlay.enable([PATCH], strict=False)
    module = import_verl()
    ours = look(module, seed, count)
    state = next(patch.state for patch in overlay.status().patches if patch.patch == PATCH)
    overlay.disable()
    released = look(module, seed, count)
    print(json.dumps({"path": module.__file__, "state": state, "overlay": ours, "released": released}))


if __name__ == "__main__":
    main()
