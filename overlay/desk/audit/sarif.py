"""An audit as SARIF 2.1.0, which code hosts and editors show: a rule and a result for each defect.

What is mended is a result that is suppressed, what cannot be told here is one to be reviewed, and what
upstream has fixed is none.
"""

from __future__ import annotations

import os

from overlay._version import __version__
from overlay.defect import HARMS, READ
from overlay.desk.audit.job_settings import ANSWERS
from overlay.errors import OverlayError, SourceError
from overlay.model.record import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from overlay.defect import Defect
    from overlay.desk.audit.audit import Audit
    from overlay.desk.audit.judge import Finding
    from overlay.source.source import InstalledTree

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {
    "silent-wrong": "error",
    "hang": "error",
    "crash": "error",
    "out-of-memory": "warning",
    "slow": "note",
}


def sarif(audit: Audit, tree: InstalledTree) -> dict[str, Any]:
    """Return the log of one run."""
    shown = audit.of("open", "unknown-source", "mended")
    rules = [_rule(audit.defects[one.defect]) for one in shown]
    results = [_result(one, place, audit, tree) for place, one in enumerate(shown)]
    driver = {"name": "overlay", "semanticVersion": _semantic(__version__), "rules": rules}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }


def _rule(defect: Defect) -> dict[str, Any]:
    shown = (
        "Read in the source; no run has shown it." if defect.shown == READ else f"Measured by {defect.shown}."
    )
    text = f"{defect.summary} Met under: {defect.met} {shown}"
    return {
        "id": defect.id,
        "shortDescription": {"text": f"{defect.id}: {HARMS[defect.harm]}"},
        "fullDescription": {"text": defect.summary},
        "help": {"text": text},
        "defaultConfiguration": {"level": _LEVELS[defect.harm]},
        "properties": {"tags": [defect.harm, defect.project.name]},
    }


def _result(finding: Finding, rule: int, audit: Audit, tree: InstalledTree) -> dict[str, Any]:
    defect = audit.defects[finding.defect]
    answer = audit.answers.get(finding.defect)
    words = [defect.summary]
    if finding.reason:
        words.append(f"{finding.reason}.")
    if answer is not None:
        words.append(f"{ANSWERS[answer.word].capitalize()}: {answer.why}.")
    if finding.way_out:
        words.append(f"Way out: {finding.way_out}.")
    certain = finding.state != "unknown-source" and (
        answer is None or answer.word == "met" or finding.state == "mended"
    )
    not_met = audit.is_not_met(finding)
    result: dict[str, Any] = {
        "ruleId": finding.defect,
        "ruleIndex": rule,
        "kind": "notApplicable" if not_met else "fail" if certain else "review",
        # The standard has no other level for what is no failure.
        "level": _LEVELS[finding.harm] if certain and not not_met else "none",
        "message": {"text": " ".join(words)},
        "locations": [_location(finding, tree)],
        "partialFingerprints": {"overlay/v1": f"{finding.defect}:{finding.project}:{finding.version}"},
    }
    if finding.state == "mended":
        result["suppressions"] = [{"kind": "external", "justification": f"{finding.patch} mends it"}]
    return result


def _location(finding: Finding, tree: InstalledTree) -> dict[str, Any]:
    module, _, name = finding.site.partition(":")
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(module, tree)}}
    line = _line(finding.site, tree)
    if line:
        physical["region"] = {"startLine": line}
    location: dict[str, Any] = {"physicalLocation": physical}
    if name:
        location["logicalLocations"] = [{"fullyQualifiedName": f"{module}.{name}", "kind": "member"}]
    return location


def _uri(module: str, tree: InstalledTree) -> str:
    """Return the file of a module, from the folder that holds its top-level package."""
    from urllib.parse import quote

    parts = module.split(".") if module else ["unknown"]
    try:
        file = tree.file(module) if module else ""
        package = not file or os.path.basename(file) == "__init__.py"
        path = [*parts, "__init__"] if file and package else parts
    except OverlayError:
        path = parts
    return quote("/".join(path) + ".py")


def _line(site: str, tree: InstalledTree) -> int:
    try:
        nodes = tree.nodes(site) if ":" in site else []
    except SourceError:
        return 0
    return next((line for node in nodes if isinstance(line := getattr(node, "lineno", None), int)), 0)


def _semantic(version: str) -> str:
    """Return a version as SARIF wants it: three numbers at least."""
    parts = version.partition("+")[0].split(".")
    return ".".join([*parts, *["0"] * (3 - len(parts))])
