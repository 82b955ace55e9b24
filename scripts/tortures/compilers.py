"""Every patched site under torch.compile, pickle, cloudpickle, deepcopy and inspect, the patch seen to run.

Of the patches that apply to what is installed here, and of the others on a release that they apply to.
See `compiler_sites.py` for how it is seen.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from checks import ENGINE

from overlay.source.registry import load_patches
from sources import git_sources
from tortures._upstreams import fetch

TORCHES = git_sources.CACHE.with_name("torches")
INSIDE = Path(__file__).resolve().parents[1] / "environment" / "inside.py"
SITES = ENGINE / "compiler_sites.py"
#: For the patches whose ids begin so, the releases that they apply to, as what is installed here they do not.
RELEASES = {"slime.": ("slime v0.3.1", "slime v0.2.4"), "verl.offload-": ("verl==0.9.1",)}
#: What is printed of each site, under which heads.
COLUMNS = {
    "eager": ("eager",),
    "compiled": ("root, eager", "root, aot_eager"),
    "callee": ("callee, eager", "callee, aot_eager"),
    "in full": ("root, fullgraph", "callee, fullgraph"),
    "pickle": ("pickle", "cloudpickle", "torch.save"),
    "copy": ("deepcopy",),
    "inspect": ("signature", "not wrapped"),
    "plain": ("plain",),
}


def look(patch: str, release: Path | None = None) -> dict[str, Any]:
    """Return what holds of the sites of one patch, in a process of its own."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("OVERLAY")}
    path = os.pathsep.join(filter(None, [str(release or ""), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SITES), patch],
        env={**clean, "PYTHONPATH": path}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return (
        dict(json.loads(lines[-1]))
        if lines
        else {"state": "failed", "reason": done.stderr[-500:], "sites": []}
    )


def torch_of(version: str) -> Path:
    """Return the folder of a release of torch, installed there once: gigabytes, if it is a build for CUDA."""

    def install(into: Path) -> None:
        print(f"installing torch {version}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(into)]
        subprocess.run([*command, f"torch=={version}", "numpy"], check=True)

    return git_sources.whole(TORCHES / version, install)


def _releases(patch: str) -> list[Path | None]:
    """Return the releases on which a patch is looked at, `None` for what is installed.

    Those that cannot be had are said, and left out.
    """
    names = [name for start, found in RELEASES.items() if patch.startswith(start) for name in found]
    found: list[Path | None] = [] if names else [None]
    for name in names:
        try:
            found.append(fetch(name))
        except RuntimeError as error:  # noqa: PERF203 -- there are two names
            print(f"{patch} is not looked at on {name}: {error}", file=sys.stderr)
    return found


def main(arguments: list[str]) -> int:
    """Look at every site, and print what holds."""
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/torture compilers")
    parser.add_argument(
        "--brief", action="store_true", help="print how many sites there are, and what is wrong"
    )
    parser.add_argument(
        "--torch",
        nargs="+",
        metavar="VERSION",
        help="the same in brief with each of these releases, which are installed under .cache",
    )
    options = parser.parse_args(arguments)
    if options.torch:
        again = [sys.executable, str(INSIDE), "tortures.compilers", "--brief"]
        # One after the other: each says its line when it is through.
        return max(
            subprocess.call(again, env={**os.environ, "PYTHONPATH": str(torch_of(version))})
            for version in options.torch
        )
    return _look_at_all(brief=options.brief)


def _look_at_all(*, brief: bool) -> int:
    """Look at every site with what is installed here."""
    import torch

    wrong, sites = [], 0
    heads = "" if brief else f"\n\n{'':48}" + "".join(f"{head:>9}" for head in COLUMNS)
    print(f"torch {torch.__version__}{heads}", end=": " if brief else "\n")
    patches = sorted(load_patches())
    for patch in patches:
        for release in _releases(patch):
            found = look(patch, release)
            where = f"{patch} on {release.name}" if release is not None else patch
            said = f"{where}: {found['state']}{'' if found['sites'] else ' ' + found['reason'][:60]}"
            if found["state"] != "skipped" and not found["sites"]:
                wrong.append(said)
            lines = [said]
            for site in found["sites"]:
                sites += 1
                bad = [name for name, value in site.items() if value is False]
                wrong += [f"{site['site']}: {', '.join(bad)}"] if bad else []
                marks = ["yes" if all(site[name] for name in names) else "NO" for names in COLUMNS.values()]
                name = site["site"] if len(site["site"]) < 46 else "..." + site["site"][-42:]
                lines.append(f"  {name:46}" + "".join(f"{mark:>9}" for mark in marks))
            if not brief:
                print("\n".join(lines), flush=True)
    print("\n".join([f"{'' if brief else chr(10)}{sites} sites, {len(wrong)} with a fault", *wrong]))
    return 1 if wrong else 0
