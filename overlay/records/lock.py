"""Locks: what is decided in one environment, frozen, so that a later process can be held to it.

A lock is plain data, and is compared as a list of facts: a name that a person can read, and a value. The
digest is that of the facts, so that it is the same wherever the lock lies and however it is written.
"""

from __future__ import annotations

import sys

from overlay._version import __version__
from overlay.records import own_digest
from overlay.source.decide import version_of
from overlay.source.registry import environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from overlay.patch import Patch
    from overlay.source.packs import Pack
    from overlay.source.source import Tree
    from overlay.verdict import TargetVerdict, Verdict

    #: A lock as data, in the form of its file.
    Lock = dict[str, Any]

#: Grows when an older overlay could not read what is written.
FORMAT = 1
#: What stands in the name of a fact about the source of a site, before the site.
SOURCE_OF = " source of "


def make_lock(static: Lock, patches: Sequence[Patch], verdicts: Iterable[Verdict], tree: Tree) -> Lock:
    """Return the lock of some patches, of which `static_part` was made, as they are decided on in a tree."""
    decided = {verdict.patch: verdict for verdict in verdicts}
    usual = {target.project.name: target.project.distributions[0] for p in patches for target in p.targets}
    return with_digest(
        {
            "format": FORMAT,
            **static,
            "environment": {project.name: version_of(project, tree) for project in environment().RECORDED},
            "patch": [
                {
                    **entry,
                    "verdict": decided[entry["id"]].verdict,
                    "target": [
                        _target(target, usual[target.project]) for target in decided[entry["id"]].targets
                    ],
                }
                for entry in static["patch"]
            ],
        }
    )


def static_part(patches: Iterable[Patch], packs: Iterable[Pack]) -> Lock:
    """Return what a process knows of its lock before any upstream is there."""
    return {
        "overlay": {"version": __version__, "content": own_digest.of_overlay()},
        "python": ".".join(map(str, sys.version_info[:3])),
        "pack": [
            {
                "name": pack.name,
                "distribution": pack.distribution,
                "version": pack.version,
                "content": own_digest.of_package(pack.package),
            }
            for pack in packs
        ],
        "patch": [
            {"id": patch.id, "revision": patch.revision, "content": own_digest.of_patch(patch.id)}
            for patch in sorted(patches, key=lambda patch: patch.id)
        ],
    }


def _target(verdict: TargetVerdict, distribution: str) -> Lock:
    sites = {finding.site: finding.digest for finding in verdict.findings if finding.digest}
    trusted = sites if verdict.trusted else {}
    return {
        "project": verdict.project,
        "distribution": distribution,
        "version": verdict.version,
        "verdict": verdict.verdict,
        "variant": verdict.variant,
        "source": _sha(sorted(sites.items())),
        "sites": sites,
        # Left out where it is empty, so that an older overlay can read what has nothing of it.
        **({"trusted": trusted} if trusted else {}),
    }


def with_digest(lock: Lock) -> Lock:
    """Return a lock that ends with its own digest."""
    body = {key: value for key, value in lock.items() if key != "digest"}
    return {**body, "digest": digest_of(facts(body))}


def digest_of(facts: Mapping[str, str]) -> str:
    """Return the hexadecimal SHA-256 of some facts."""
    return _sha(sorted(facts.items()))


def _sha(value: object) -> str:
    import json
    from hashlib import sha256

    return sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def facts(lock: Lock) -> dict[str, str]:
    """Return all that a lock says, as values by names that tell a person what each is."""
    found = {"lock format": str(lock.get("format", FORMAT)), "python": lock["python"]}
    found.update({f"overlay {key}": value for key, value in lock["overlay"].items()})
    found.update({f"{name} version": value for name, value in lock.get("environment", {}).items()})
    for pack in lock["pack"]:
        found.update(
            {f"pack {pack['name']}: {key}": pack[key] for key in ("distribution", "version", "content")}
        )
    for patch in lock["patch"]:
        found.update(patch_facts(patch))
    return found


def patch_facts(patch: Lock) -> dict[str, str]:
    """Return what a lock says of one patch."""
    name = patch["id"]
    found = {f"{name}: revision": str(patch["revision"]), f"{name}: content": patch["content"]}
    if "verdict" in patch:
        found[f"{name}: verdict"] = patch["verdict"]
    for target in patch.get("target", ()):
        about = f"{name}: {target['project']}"
        keys = ("distribution", "version", "verdict", "variant", "source")
        found.update({f"{about} {key}": target[key] for key in keys})
        found.update({f"{about}{SOURCE_OF}{site}": digest for site, digest in target["sites"].items()})
        found.update(
            {f"{about} trusted{SOURCE_OF}{site}": value for site, value in target.get("trusted", {}).items()}
        )
    return found


def packs_of(lock: Lock) -> tuple[str, ...]:
    """Return the names of the packs in a lock."""
    return tuple(pack["name"] for pack in lock["pack"])


def selection_of(lock: Lock, known: Mapping[str, Patch]) -> str:
    """Return a selection of what was locked, as a value of `OVERLAY_PATCHES`.

    A companion comes along by itself, as it did when the lock was made, or is dropped. A patch that is not
    known any more is left to the comparison with the lock, which names it.

    Args:
        lock: The lock.
        known: The patches that come with overlay, by id.

    """
    ids = [patch["id"] for patch in lock["patch"] if "/" in patch["id"] or patch["id"] in known]
    companions = {name for name, patch in known.items() if patch.companion}
    named = [name for name in ids if name not in companions] or ids
    dropped = [f"-{name}" for name in sorted(companions.difference(ids))]
    return ",".join([*named, *dropped]) if named else "none"


def differences(locked: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Return a sentence for each fact that differs, in the order of the names."""
    return [difference(name, locked, here) for name in different([locked, here])]


def difference(name: str, locked: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return a sentence for one fact that differs."""
    return f"{name}: locked {shown(locked.get(name))}, here {shown(here.get(name))}"


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a sentence for each fact that is another one now, in the order of the names."""
    return [
        f"{name}: was {shown(before.get(name))}, is {shown(after.get(name))}"
        for name in different([before, after])
    ]


def different(said: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names of the facts that differ, sorted, without those that follow from others.

    Of a patch that some do not have, its revision does. The digest of all sources of a target says nothing
    that the sources which differ do not.
    """
    names = sorted({name for facts in said for name in facts})
    found = [name for name in names if len({facts.get(name) for facts in said}) > 1]
    missing = [
        name.removesuffix("revision")
        for name in found
        if name.endswith(": revision") and any(name not in facts for facts in said)
    ]
    sources = any(SOURCE_OF in name for name in found)
    return [
        name
        for name in found
        if not (sources and name.endswith(" source"))
        and not any(name.startswith(about) and name != f"{about}revision" for about in missing)
    ]


def shown(value: str | None) -> str:
    """Return the value of a fact as a person wants to see it."""
    if value is None:
        return "absent"
    return (value[:12] if len(value) == 64 else value) or "none"  # noqa: PLR2004 -- a digest, of which 12 digits do
