"""What reports are made from in these tests: ledgers of ranks, a suite, and a figure of each kind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import overlay
from overlay import cli
from overlay.report import inputs

if TYPE_CHECKING:
    import random
    from pathlib import Path

#: Where it has to be text in every place that takes any.
HOSTILE = (
    "</span></pre><script>window.hacked=1</script>\"'><img src=x onerror=window.hacked=1>{{ 7*7 }}$\\frac"
)


def status(site: Path, **changes: Any) -> dict[str, Any]:
    """Return the ledger of a process that has applied what can be applied in a folder."""
    patches: list[dict[str, Any]] = [
        {
            "patch": verdict.patch,
            "revision": verdict.revision,
            "state": {"apply": "applied", "not-installed": "armed"}.get(verdict.verdict, "skipped"),
            "reason": verdict.reason if verdict.verdict not in ("apply", "not-installed") else "",
            "verdict": None if verdict.verdict == "not-installed" else verdict.to_dict(),
            "sites": [],
        }
        for verdict in overlay.plan("all", str(site)).verdicts
    ]
    known: dict[str, Any] = {
        "enabled": True,
        "strict": False,
        "version": overlay.__version__,
        "python": "3.11.7",
        "pid": 1,
        "selection": [patch["patch"] for patch in patches],
        "patches": patches,
        "pinned": "",
        "half_patched": [],
    }
    return {**known, **changes}


def patch_of(ledger: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a ledger says of one patch."""
    found: dict[str, Any] = next(patch for patch in ledger["patches"] if patch["patch"] == name)
    return found


def suite(text: str = "reason") -> dict[str, Any]:
    """Return a result as `overlay suite run --json` prints it."""
    change = {"id": f"tests/test_a.py::{text}", "before": "passed", "after": "failed", "reason": text}
    difference = {"lost": [change], "won": [], "failing": [change], "flaky": [], "changed": [], "passing": 12}
    return {"runs": [{"recipe": f"recipe {text}", "difference": difference}], "not_run": []}


def figures(draw: random.Random, text: str = "name") -> list[dict[str, Any]]:
    """Return a figure of each kind with drawn values."""
    tokens = [draw.randint(1, 20_000) for _ in range(draw.randint(1, 40))]
    spans = [(rank, draw.choice((0, 1, 2, 4)), rank / 2, rank / 2 + draw.random() + 0.1) for rank in range(4)]
    return [
        {
            "kind": "micro-batches",
            "title": text,
            "budget": 16_384,
            "series": {text: tokens, "after": tokens[:1]},
        },
        {
            "kind": "gradient-error",
            "title": text,
            "tolerance": 1e-6,
            "cases": {text: {text: draw.random(), "after": 0.0}, "crash": {text: None, "after": 1e-7}},
        },
        {"kind": "memory", "title": text, "unit": text, "cases": {text: {text: draw.random(), "after": 0.5}}},
        {
            "kind": "memory-over-time",
            "title": text,
            "unit": text,
            "series": {text: [0.0, draw.random(), 0.1]},
        },
        {"kind": "timelines", "title": text, "steps": {text: [*spans, (0, 2, 0.0, 0.4)]}},
    ]


def ledgers(folder: Path, *statuses: dict[str, Any]) -> list[inputs.Ledger]:
    """Return what ranks say that have written these statuses."""
    paths = [write(folder / f"rank{rank}.json", status) for rank, status in enumerate(statuses)]
    return [inputs.ledger(path) for path in paths]


def page(folder: Path, *words: str) -> str:
    """Write a report into a folder, and return its HTML."""
    assert cli.main(["report", "-o", str(folder / "r.html"), *words]) == 0
    return (folder / "r.html").read_text(encoding="utf-8")


def write(path: Path, data: Any) -> str:
    """Write JSON to a file and return its path."""
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)
