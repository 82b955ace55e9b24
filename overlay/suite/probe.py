"""What a run will test, seen from one of its processes: `python -m overlay.suite.probe`.

It runs where the tests run, with the interpreter and the path that they get, imports nothing of an upstream,
and prints JSON.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from importlib.machinery import PathFinder

from packaging.requirements import Requirement

from overlay._version import __version__
from overlay.base.record import TYPE_CHECKING
from overlay.deciding.decide import variant_of
from overlay.enabling.loading import load_all
from overlay.enabling.process import here

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def main(arguments: Sequence[str]) -> int:
    """Print what there is. The arguments are a JSON list of packages and one of requirements."""
    packages, requirements = (json.loads(text) for text in arguments)
    json.dump(look(packages, requirements), sys.stdout)
    return 0


def look(packages: Sequence[str], requirements: Sequence[str]) -> dict[str, Any]:
    """Return versions, the folders of packages, unmet requirements, and the verdicts on patches."""
    known = load_all()
    plan = here().plan()
    patches: dict[str, Any] = {}
    for verdict in plan.verdicts:
        found = [(known[verdict.patch], target) for target in verdict.targets]
        variants = [variant_of(patch, target) for patch, target in found]
        sites = [item.site for variant in variants if variant is not None for item in variant.replacements]
        patches[verdict.patch] = {
            "revision": verdict.revision,
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "where": verdict.where(),
            "sites": sites if verdict.verdict == "apply" else [],
            "selected": verdict.patch in plan.selection,
        }
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "overlay": __version__,
        "digest": plan.digest,
        "packages": {name: _place(name) for name in packages},
        "versions": {
            name: _version(name) for name in sorted({Requirement(text).name for text in requirements})
        },
        "lacking": [text for text in requirements if not _met(text)],
        "patches": patches,
    }


def _place(package: str) -> str:
    """Return the folder that a package would be imported from, empty if there is none."""
    spec = PathFinder.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return os.path.realpath(places[0]) if places else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _met(text: str) -> bool:
    requirement = Requirement(text)
    version = _version(requirement.name)
    return bool(version) and requirement.specifier.contains(version, prereleases=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
