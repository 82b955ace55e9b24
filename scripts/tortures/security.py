"""Hostile settings, locks and sources: nothing beyond the named packs is run, and every audit ends.

Settings and locks are tried in fresh processes under Python's audit hook, beside one without them: what is
imported, executed and opened more has to be Python's own or overlay's, or the lock that was named. Sources
are audited in a process with a limit on memory; each has a verdict, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import overlay
import overlay.compat
import overlay.patches
from overlay.records import lock as _lock
from overlay.records import lock as lockfile
from tortures import _hostile
from tortures.fuzz import example

WATCHED, HOSTILE = (Path(__file__).with_name(name) for name in ("_watched.py", "_hostile.py"))
#: Seconds of the processor that the audit of one source may take.
PATIENCE = 20.0
EVIL = "evil_overlay_pack"


def bait(folder: Path) -> Path:
    """Make importable modules and an installed pack that leave a file behind if any of them is executed."""
    mark = folder / "executed"
    code = f"open({str(mark)!r}, 'w').close()\nPATCH = None\n"
    for name in (EVIL, "evil", "json_evil"):
        package = folder / name
        (package / "verl").mkdir(parents=True)
        for place in ("__init__.py", "verl/__init__.py", "verl/fix.py"):
            (package / place).write_text(code)
    info = folder / "evil_pack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil-pack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[overlay.patches]\nevil = {EVIL}\nother-evil = os:system\n")
    return mark


def settings(folder: Path) -> dict[str, dict[str, str]]:
    """Return hostile environments by name."""
    lock = example()
    names = {"pack": [{**lock["pack"][0], "name": "evil", "distribution": "evil-pack"}]}
    outside = {f"../../../../etc/passwd:{word}": "0" for word in ("x", "../y")} | {"/etc/shadow:x": "0"}
    target = {**lock["patch"][0]["target"][0], "sites": outside, "project": "../../etc"}
    entries = {"patch": [{**lock["patch"][0], "id": "../../evil/verl.fix", "target": [target]}]}
    paths = {}
    for name, changed in (("packs", names), ("paths", entries)):
        paths[name] = folder / f"{name}.lock"
        paths[name].write_text(lockfile.write(_lock.with_digest({**lock, **changed})))
    pipe = folder / "pipe.lock"
    os.mkfifo(pipe)
    return {
        "a lock that names a pack": {"OVERLAY_PIN": str(paths["packs"])},
        "a lock with paths for sites": {"OVERLAY_PIN": str(paths["paths"])},
        "a pipe for a lock": {"OVERLAY_PIN": str(pipe)},
        "a device for a lock": {"OVERLAY_PIN": "/dev/zero"},
        "an address for a lock": {"OVERLAY_PIN": "http://127.0.0.1:9/x.lock"},
        "a module for a pack": {"OVERLAY_PACKS": "json-evil"},
        "a path for a pack": {"OVERLAY_PACKS": "../evil"},
        "code for a selection": {"OVERLAY_PATCHES": "__import__('evil')"},
        "a pack's id without the pack": {"OVERLAY_PATCHES": "evil/verl.fix"},
        "paths for a selection": {"OVERLAY_PATCHES": "/etc/*,../../*"},
        "code everywhere": dict.fromkeys(
            ("OVERLAY_STRICT", "OVERLAY_LOG", "OVERLAY_EVIL"), "$(touch executed); import evil"
        ),
    }


def watched(folder: Path, environ: dict[str, str]) -> dict[str, Any]:
    """Return what a fresh process did in an environment, with the bait on its path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OVERLAY")}
    done = subprocess.run(
        [sys.executable, str(WATCHED)],
        env={**clean, "PYTHONPATH": str(folder), "OVERLAY_LOG": "off", **environ},
        capture_output=True, text=True, check=True, timeout=300, cwd=folder,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def allowed(event: str, what: str, environ: dict[str, str]) -> bool:
    """Return whether something that happens on top of what always happens is none of a hostile setting."""
    packages = (overlay, overlay.patches, overlay.compat)
    ours = [str(Path(str(one.__file__)).resolve().parent) for one in packages]
    ours += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    if event == "import":
        top = what.partition(".")[0]
        return top in sys.stdlib_module_names or top in ("overlay", "packaging", "tomli")
    if event in ("exec", "open", "os.walk"):
        inside = what.startswith((*ours, "<frozen")) or "/packaging/" in what
        # The last is no file: an entry of the path by which an editable install says that it has a finder.
        metadata = what.endswith((".dist-info", "entry_points.txt", "METADATA", ".finder.__path_hook__"))
        return inside or metadata or what == environ.get("OVERLAY_PIN")
    return event in ("os.listdir", "os.scandir", "os.putenv")  # of the path, for metadata


def attacks() -> list[tuple[str, str, str]]:
    """Return by name what came of every hostile setting: what was said, and what must not have happened."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        mark = bait(folder)
        usual = {tuple(event) for event in watched(folder, {})["events"]}
        rows = []
        for name, environ in settings(folder).items():
            found = watched(folder, environ)
            more = [tuple(event) for event in found["events"] if tuple(event) not in usual]
            wrong = [f"{event} {what}" for event, what in more if not allowed(event, what, environ)]
            wrong += ["the bait was executed"] if mark.exists() else []
            said = found["error"].partition("\n")[0].replace(scratch, "FOLDER")
            rows.append((name, said, "; ".join(wrong)))
        # That the bait works: it is a pack like any other once it is named.
        if not watched(folder, {"OVERLAY_PACKS": "evil"})["error"] or not mark.exists():
            rows.append(("a pack that is named", "", "was not executed: this shows nothing"))
    return rows


def sources(*names: str) -> list[tuple[str, str, float, str]]:
    """Return name, verdict, seconds and reason of the hostile sources whose names hold one of some words."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, str(HOSTILE), scratch, *names],
            capture_output=True, text=True, check=False, timeout=1200,
        )  # fmt: skip
    found = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    if done.returncode:
        found.append(("(the process ended)", "", 0.0, done.stderr[-500:]))
    return found


def main(arguments: list[str]) -> int:
    """Print both tables; 1 if anything was wrong."""
    about = (__doc__ or "").partition("\n")[0]
    argparse.ArgumentParser(prog="scripts/torture security", description=about).parse_args(arguments)
    tried, audited = attacks(), sources()
    print(f"{'setting':32}{'ran or opened':18}what it said")
    for name, said, wrong in tried:
        print(f"{name:32}{wrong or 'nothing':18}{said[:70] or '-'}")
    bad = [row for row in audited if row[1] != "unknown-source" or row[2] > PATIENCE]
    print(
        f"\n{len(audited)} hostile sources in {_hostile.MEMORY >> 20} MiB: {len(audited) - len(bad)} unknown"
    )
    print(f"slowest: {max(row[2] for row in audited):.0f} s")
    print("\n".join(f"{name}: {verdict} after {seconds:.1f} s: {why}" for name, verdict, seconds, why in bad))
    return int(bool(bad) or any(wrong for _, _, wrong in tried))
