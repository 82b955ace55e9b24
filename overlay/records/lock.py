"""Locks: what is decided in one environment, frozen, so that a later process can be held to it.

A lock is plain data that ends with a digest of the rest. Two locks are compared as facts: a name that a
person can read, and a value.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from hashlib import sha256
from typing import Any

from overlay._version import __version__
from overlay.errors import LockError
from overlay.model.settings import DIGEST_PREFIX
from overlay.model.whole import write_whole
from overlay.patch import Patch
from overlay.source.decide import version_of
from overlay.source.registry import PACK, Pack, content_of, environment
from overlay.source.source import Tree
from overlay.verdict import TargetVerdict, Verdict

#: A lock as data, in the form of its file.
Lock = dict[str, Any]


#: What a lock is called where nobody says otherwise.
LOCK_FILE = "overlay.lock"
#: Changes with the form of what is written.
FORMAT = 2
#: Stands before the site in the name of a fact about its source.
SOURCE_OF = " source of "
#: Words for the values of two locks, then for the patches that only the first has, and only the second.
HELD = ("locked", "here", "locked and not selected here", "selected here and not locked")
WRITTEN = ("was", "is", "dropped", "added")
#: The end of the name of the fact that a lock has a patch.
SELECTED = ": selected"
#: The most bytes of a lock's file.
_LARGEST = 1 << 20


def make_lock(static: Lock, verdicts: Iterable[Verdict], tree: Tree) -> Lock:
    """Return the lock of the patches in `static`, a `static_part`, with the verdicts on them in a tree."""
    decided = {verdict.patch: verdict for verdict in verdicts}
    entries = [(entry, decided[entry["id"]]) for entry in static["patch"]]
    return with_digest(
        {
            "format": FORMAT,
            **static,
            "environment": {project.name: version_of(project, tree) for project in environment().RECORDED},
            "patch": [
                {**entry, "verdict": one.verdict, "target": [_target(target) for target in one.targets]}
                for entry, one in entries
            ],
        }
    )


def static_part(patches: Iterable[Patch], packs: Iterable[Pack]) -> Lock:
    """Return the part of its lock that a process knows before any upstream is imported."""
    return {
        "overlay": {"version": __version__, "content": content_of(PACK)},
        "python": ".".join(map(str, sys.version_info[:3])),
        "pack": [
            {
                "name": pack.name,
                "distribution": pack.distribution,
                "version": pack.version,
                "content": content_of(pack.package),
            }
            for pack in packs
        ],
        "patch": [{"id": name} for name in sorted(patch.id for patch in patches)],
    }


def _target(verdict: TargetVerdict) -> Lock:
    return {
        "project": verdict.project,
        "version": verdict.version,
        "verdict": verdict.verdict,
        "variant": verdict.variant,
        "trusted": "yes" if verdict.trusted else "no",
        "sites": {finding.site: finding.digest for finding in verdict.findings if finding.digest},
    }


def with_digest(lock: Lock) -> Lock:
    """Return a lock that ends with its own digest."""
    body = {key: value for key, value in lock.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return {**body, "digest": sha256(text.encode()).hexdigest()}


def facts(lock: Lock, begin: tuple[str, ...] = ("",)) -> dict[str, str]:
    """Return all that a lock says, as values by names that tell a person what each is and `begin` so."""
    found = {"python": lock["python"]}
    found |= {f"overlay {key}": value for key, value in lock["overlay"].items()}
    found |= {f"{name} version": value for name, value in lock.get("environment", {}).items()}
    for pack in lock["pack"]:
        found |= {f"pack {pack['name']}: {key}": pack[key] for key in pack if key != "name"}
    for patch in lock["patch"]:
        name = patch["id"]
        found |= {f"{name}{SELECTED}": "yes"}
        found |= {f"{name}: {key}": patch[key] for key in patch if key not in ("id", "target")}
        for target in patch.get("target", ()):
            about = f"{name}: {target['project']}"
            found |= {f"{about} {key}": target[key] for key in target if key not in ("project", "sites")}
            found |= {f"{about}{SOURCE_OF}{site}": digest for site, digest in target["sites"].items()}
    return {name: value for name, value in found.items() if name.startswith(begin)}


def selection_of(lock: Lock, known: Mapping[str, Patch]) -> str:
    """Return a selection of what was locked, as a value of `OVERLAY_PATCHES`.

    A companion comes along by itself, as it did when the lock was made, or is dropped. A patch that is not
    known any more is left to the comparison with the lock, which names it.
    """
    ids = [patch["id"] for patch in lock["patch"] if "/" in patch["id"] or patch["id"] in known]
    companions = {name for name, patch in known.items() if patch.companion}
    named = [name for name in ids if name not in companions] or ids
    terms = [*named, *(f"-{name}" for name in sorted(companions.difference(ids)))]
    default = {name for name, patch in known.items() if not patch.opt_in}
    more = (name for name in ids if name not in default)
    by_all = ["all", *more, *(f"-{name}" for name in sorted(default.difference(ids)))]
    if len(by_all) < len(terms) and not lock["pack"]:  # `all` would select each patch of a pack
        terms = by_all
    return ",".join(terms) if named else "none"


def take_from(path: str, environ: MutableMapping[str, str], known: Mapping[str, Patch]) -> None:
    """Take the packs and the selection of a lock, unless an environment sets them. Raises `LockError`."""
    lock = read(path)
    if not environ.get("OVERLAY_PACKS"):
        environ["OVERLAY_PACKS"] = ",".join(pack["name"] for pack in lock["pack"])  # and none for none
    if not environ.get("OVERLAY_PATCHES"):
        environ["OVERLAY_PATCHES"] = selection_of(lock, known)


def compare(one: Mapping[str, str], other: Mapping[str, str], words: Sequence[str] = HELD) -> list[str]:
    """Return how the facts of two locks differ: a line for each, and one for patches that only one has."""
    was, now, *sides = words
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    lines = []
    for side, lacking in zip(sides, (other, one), strict=True):
        lone = [
            name.removesuffix(SELECTED) for name in names if name.endswith(SELECTED) and name not in lacking
        ]
        lines += [f"{side}: {', '.join(lone)}"] if lone else []
        names = [name for name in names if name.partition(": ")[0] not in lone]
    return [
        *lines,
        *(f"{name}: {was} {shown(one.get(name))}, {now} {shown(other.get(name))}" for name in names),
    ]


def shown(value: str | None) -> str:
    """Return the value of a fact as a person wants to see it."""
    if value is None:
        return "absent"
    return (value[:12] if len(value) == 64 else value) or "none"  # noqa: PLR2004 -- a digest, of which 12 digits do


def read(path: str, terms: Sequence[str] = ()) -> Lock:
    """Return the lock in a file, if it is what its digest says. Raises `LockError`.

    `terms`: what is selected, for advice, where the environment need not have it.
    A lock holds no paths, no code and no addresses, so reading it runs nothing and follows nothing.
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe would wait for somebody who writes
            raise OSError("it is no regular file")  # noqa: TRY301
        with open(path, "rb") as file:
            text = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise LockError(f"there is no lock {path}: {writer(path, terms=terms)} writes one") from None
    except (OSError, ValueError) as error:  # a name that no file can have
        raise LockError(f"the lock {path} cannot be read: {error}") from error
    if len(text) > _LARGEST:
        raise LockError(f"{path} is damaged: more than {_LARGEST} bytes")
    try:
        lock: Lock = json.loads(text)
        form = lock["format"]
        plain = _is_plain({**lock, "format": ""}) and all(
            type(patch.get(key)) is str for patch in lock.get("patch", ()) for key in ("id", "verdict")
        )
        whole = form == FORMAT and with_digest(lock)["digest"] == lock["digest"] and bool(facts(lock))
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        what = f"is damaged, or of another overlay: {type(error).__name__}: {error}"
        raise LockError(
            f"{path} {what}; name another file, which `OVERLAY_PIN= overlay lock --file OTHER` writes"
        ) from error
    if form != FORMAT:
        what = f"was written by another overlay (format {form!r:.20}, this one reads {FORMAT})"
    elif not whole:
        what = "is damaged, or was edited: it is not what its digest says"
    else:
        what = "" if plain else "is damaged: a value in it has the wrong type"
    if what:
        raise LockError(f"{path} {what}; write it with {writer(path, '--update', terms=terms)}")
    return lock


def writer(path: str, *options: str, terms: Sequence[str] = ()) -> str:
    """Return the command that writes a lock of what is asked for here, whatever this process is pinned to.

    `terms`: the selection, where the environment need not have it.
    """
    from shlex import join, quote

    words = [] if path == LOCK_FILE or path.startswith(DIGEST_PREFIX) else ["--file", path]
    patches = ",".join(terms) or os.environ.get("OVERLAY_PATCHES")
    words += ["--patches", patches] if patches else []
    names = ("OVERLAY_PACKS", "OVERLAY_TRUST")
    given = [f"{name}={quote(os.environ[name])}" for name in names if os.environ.get(name)]
    command = f"`OVERLAY_PIN= {' '.join([*given, join(['overlay', 'lock', *words, *options])])}`"
    if path.startswith(DIGEST_PREFIX):
        command += ", and set OVERLAY_PIN to the digest that it prints"
    return command


def _is_plain(value: object) -> bool:
    """Return whether a value is made of tables, lists of tables and texts, as a lock is."""
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list):
        return all(isinstance(one, dict) and _is_plain(one) for one in value)
    return isinstance(value, str) and value.isprintable()


def write(lock: Lock) -> str:
    """Return a lock as the text of its file."""
    return json.dumps(lock, indent=1) + "\n"


def save(path: str, lock: Lock) -> None:
    """Write a lock into a file completely, or leave the file as it was. Raises `OSError`."""
    write_whole(path, write(lock).encode())
