"""Ask the contract of a patch with the upstream that is first on the path, and print what it says as JSON.

    python contract_check.py ID SEED

First upstream alone, then, in the same process, with the patch if it is one for this upstream.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

import overlay


def main() -> None:
    """Print what is wrong alone and with the patch, and what became of the patch."""
    name, seed = sys.argv[1:]
    wrong = import_module(f"{_folder(name)}.contract").wrong
    alone = wrong(seed)
    overlay.enable([name], strict=False)
    state = next(patch.state for patch in overlay.status().patches if patch.patch == name)
    found = {"alone": alone, "state": state, "patched": wrong(seed) if state == "applied" else None}
    print(json.dumps(found))


def _folder(name: str) -> str:
    """Return the package of a patch."""
    project, patch = name.split(".")
    return f"overlay.patches.{project}.{patch.replace('-', '_')}"


if __name__ == "__main__":
    main()
