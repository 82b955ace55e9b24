"""What reports are made from in these tests: the folder that a job's ranks left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import overlay
from overlay import cli

#: Has to be text wherever text may stand.
HOSTILE = "</span></p><script>window.hacked=1</script>\"'><img src=x onerror=window.hacked=1>{{ 7*7 }}"


def status(site: Path, **changes: Any) -> dict[str, Any]:
    """Return the ledger of a process that has applied what can be applied in a folder."""
    patches: list[dict[str, Any]] = [
        {
            "patch": verdict.patch,
            "state": {"apply": "applied", "not-installed": "waiting"}.get(verdict.verdict, "skipped"),
            "reason": verdict.reason if verdict.verdict not in ("apply", "not-installed") else "",
            "verdict": None if verdict.verdict == "not-installed" else verdict.to_dict(),
            "sites": [],
        }
        for verdict in overlay.plan("all", str(site)).verdicts
    ]
    ids = [patch["patch"] for patch in patches]
    known = {"enabled": True, "strict": False, "version": "1", "python": "3.11.7", "pinned": ""}
    return {**known, "half_patched": [], "selection": ids, "patches": patches, **changes}


def patch_of(ledger: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a ledger says of one patch."""
    found: dict[str, Any] = next(patch for patch in ledger["patches"] if patch["patch"] == name)
    return found


def job(folder: Path, *statuses: dict[str, Any], world: int | None = None) -> Path:
    """Write what ranks leave that say this of themselves, and return the folder."""
    folder.mkdir(exist_ok=True)
    for rank, said in enumerate(statuses):
        write(folder / f"ledger-{rank}.json", said)
        process(folder, str(rank), rank=rank, world=world)
    return folder


def process(folder: Path, ledger: str, **changes: Any) -> None:
    """Write the file of one process."""
    known = {"ledger": ledger, "rank": None, "world": None, "host": "node", "pid": 7, "ended": True}
    number = len(list(folder.glob("process-*")))
    write(folder / f"process-{number:03}.json", {**known, "effects": {}, **changes})


def page(folder: Path, *words: str) -> str:
    """Write a report into a folder, and return its HTML."""
    assert cli.main(["report", *words, "-o", str(folder / "r.html")]) == 0
    return (folder / "r.html").read_text(encoding="utf-8")


def write(path: Path, data: Any) -> str:
    """Write JSON to a file and return its path."""
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)
