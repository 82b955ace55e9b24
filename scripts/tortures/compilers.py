"""Every patched site under torch.compile, pickle, cloudpickle, deepcopy and inspect, the patch seen to run.

Of the patches that apply to what is installed here, and of slime's on two releases, if those are unpacked.
See tests/torture/compiler_sites.py for how it is seen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from overlay._registry import load_patches

ROOT = Path(__file__).resolve().parents[2]
SITES = ROOT / "tests" / "torture" / "compiler_sites.py"
SLIME = ("v0.3.1", "v0.2.4")
#: What is printed of each site, under which heads.
COLUMNS = {
    "eager": ("eager",),
    "compiled": ("root, eager", "root, aot_eager"),
    "callee": ("callee, eager", "callee, aot_eager"),
    "pickle": ("pickle", "cloudpickle", "torch.save"),
    "copy": ("deepcopy",),
    "inspect": ("signature", "not wrapped"),
}


def look(patch: str, release: Path | None = None) -> dict[str, Any]:
    """Return what holds of the sites of one patch, in a process of its own."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OVERLAY")}
    path = {"PYTHONPATH": str(release)} if release is not None else {}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SITES), patch],
        env={**clean, **path}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return (
        dict(json.loads(lines[-1]))
        if lines
        else {"state": "failed", "reason": done.stderr[-500:], "sites": []}
    )


def main(arguments: list[str]) -> int:
    """Look at every site, and print what holds."""
    argparse.ArgumentParser(description=__doc__, prog="scripts/torture compilers").parse_args(arguments)
    import torch

    wrong, sites = [], 0
    print(f"torch {torch.__version__}\n\n{'':64}" + "".join(f"{head:>9}" for head in COLUMNS))
    for patch in sorted(load_patches()):
        releases = [ROOT / ".cache" / "releases" / f"slime-{tag}" for tag in SLIME]
        for release in (
            [folder for folder in releases if folder.is_dir()] if patch.startswith("slime") else [None]
        ):
            found = look(patch, release)
            where = f" on {release.name}" if release is not None else ""
            print(f"{patch}{where}: {found['state']}{'' if found['sites'] else ' ' + found['reason'][:60]}")
            for site in found["sites"]:
                sites += 1
                bad = [name for name, value in site.items() if value is False]
                wrong += [f"{site['site']}: {', '.join(bad)}"] if bad else []
                marks = ["yes" if all(site[name] for name in names) else "NO" for names in COLUMNS.values()]
                name = site["site"] if len(site["site"]) < 62 else "..." + site["site"][-58:]
                print(f"  {name:62}" + "".join(f"{mark:>9}" for mark in marks), flush=True)
    print("\n".join([f"\n{sites} sites, {len(wrong)} with a fault", *wrong]))
    return 1 if wrong else 0
