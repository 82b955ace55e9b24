"""Bare `overlay`: what is installed, what is done to it and what comes next, on one screen of 80 columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from overlay._version import __version__
from overlay.desk.audit.audit import make_audit
from overlay.desk.output import EXIT_LOUD, EXIT_OK, write
from overlay.errors import OverlayError
from overlay.launch.doctor import NO, Check, examine
from overlay.model.text import counted, listed, table, wrap
from overlay.records.lock import LOCK_FILE
from overlay.runtime.engine import Engine
from overlay.source.decide import Installed, installed
from overlay.source.registry import environment
from overlay.source.source import Tree
from overlay.verdict import Verdict

#: Stands for the command that starts a job where no project is known to be installed.
_COMMAND = "torchrun --nproc-per-node 8 train.py"
#: The order in which people want to know: does my training change, does it fit, does it go on?
_ORDER = ("numbers", "memory", "hangs", "crashes", "speed", "safety")
#: Ids in a sentence, at most.
_NAMED = 4
#: The most patches of a project that are named for one kind of change; `overlay plan` names all.
_SHOWN = 12


def show_screen(engine: Engine) -> int:
    """Look at what is here, bad news first. Nothing of an upstream is imported.

    What is selected and cannot be applied is exit code 1. Raises `OverlayError` for a broken pack.
    """
    known, tree = engine.known(), Tree()
    applied: dict[str, tuple[str, ...]] = {}
    refused: tuple[Verdict, ...] = ()
    with suppress(OverlayError):  # the checkup says what is wrong with the selection
        chosen = engine.plan(None, tree)
        here = {one.patch for one in chosen.verdicts if one.verdict == "apply"}
        if not here.isdisjoint({*chosen.selection}.difference(chosen.companions)):
            applied = {name: known[name].changes for name in chosen.selection if name in here}
        refused = chosen.loud
    audit = make_audit(engine, engine.plan_each(tree).replace(selection=tuple(applied)), tree)
    checkup = examine(engine)
    wrong = [check for check in checkup.checks if check.answer == NO]
    # A wrong selection first, OVERLAY last, as a job sets it. What is wrong with a setting has its name.
    wrong.sort(key=lambda check: (not check.todo, check.name == "OVERLAY", check.name != "selection"))
    reasons = [check.found if check.name == "selection" else f"{check.name} {check.found}" for check in wrong]
    projects = engine.installed(tree)
    there = {one.project for one in projects if one.version}
    wanted = {target.project.name for patch in known.values() for target in patch.targets}

    lines = [*_projects(projects), "", *refusals(refused)]
    stacks = [one for one in installed(environment().STACKS, tree) if one.version]
    lines += [f"{one.project} {one.version} on its {environment().BENEATH}:" for one in stacks[:1]]
    lines += families(applied, armed=checkup.armed)
    mended, left = (tuple(one.defect for one in audit.of(state)) for state in ("mended", "open"))
    unknown = [one.defect for one in audit.of("unknown-source")]
    present = len(mended) + len(left)
    patched = "patched" if checkup.armed else "would be patched"
    text = f"{counted(present, 'known defect')} here: {len(mended)} {patched}, {len(left)} not"
    lines.append(wrap(f"{text} ({listed(left, _NAMED)}; `overlay audit`)" if left else text))
    if unknown:
        lines.append(wrap(f"not known for this source: {listed(unknown, _NAMED)}"))
    active = f"no, {reasons[0]}" if reasons else "yes, in every Python process that starts here and now"
    lines.append(wrap(f"active: {active}", " " * 8, first=""))
    if not there & wanted:
        step = f"install overlay into the Python that has {' or '.join(sorted(wanted))}"
    else:
        step = next_command(checkup.checks, [*applied], refused, there)
    if step.startswith("overlay run"):
        lines += ["next, before the command that starts your job:", f"  {step}"]
    else:
        lines.append(wrap(f"next: {step}", " " * 6, first=""))
    write("\n".join(lines))
    return EXIT_LOUD if refused else EXIT_OK


def next_command(
    checks: Sequence[Check], applied: Sequence[str], refused: Sequence[Verdict], there: Collection[str]
) -> str:
    """Return what to do: correct a setting, look at a refused patch, start a job, pin it.

    `there`: the projects that are installed.
    """
    wrong = {check.name for check in checks if check.answer == NO and check.todo}
    if wrong - {"OVERLAY", "upstreams"}:
        return "overlay doctor"
    if refused:  # a conflict is there only beside what else is selected
        return "overlay plan" if refused[0].verdict == "conflict" else f"overlay explain {refused[0].patch}"
    if not applied:
        return "overlay audit"
    if wrong:
        pin = f" --pin {LOCK_FILE}" if os.path.isfile(LOCK_FILE) else ""
        command = next((words for name, words in environment().STARTED.items() if name in there), _COMMAND)
        return f"overlay run{pin} {command}"
    pinned = any(check.name == "pin" and check.answer != "-" for check in checks)
    return "overlay plan" if pinned else "overlay lock"


def _projects(projects: Sequence[Installed]) -> list[str]:
    rows = [("Python", ".".join(map(str, sys.version_info[:3])), sys.executable)]
    before = ""
    for one in projects:
        if one.version:
            rows.append((one.project, one.version, "same folder" if one.where == before else one.where))
            before = one.where
    lines = [table((f"overlay {__version__}", "version", "where"), rows)]
    if absent := [one.project for one in projects if not one.version]:
        lines.append(wrap(f"not installed: {', '.join(absent)}"))
    return lines


def refusals(items: Sequence[Verdict]) -> list[str]:
    """Return what was asked for and is not done: each with its reason, or of many the ids by verdict."""
    if not items:
        return []
    lines = [f"{counted(len(items), 'selected patch')} CANNOT BE APPLIED:"]
    if len(items) <= _NAMED:
        lines += [wrap(f"{one.patch}: {one.verdict}, {one.reason}", " " * 4, first="  ") for one in items]
    else:
        for verdict in dict.fromkeys(one.verdict for one in items):
            ids = ", ".join(one.patch for one in items if one.verdict == verdict)
            lines.append(wrap(f"{verdict}: {ids}", " " * 4, first="  "))
    return [*lines, ""]


def families(patches: Mapping[str, tuple[str, ...]], *, armed: bool) -> list[str]:
    """Return the patches that apply, as `project: name, name`, by what they change first of all."""
    if not patches:
        return ["no selected patch applies here"]
    apply = f"appl{'y' if len(patches) > 1 else 'ies'}" if armed else "would apply"
    lines = [f"{counted(len(patches), 'patch')} {apply}, by what they change (overlay explain ID says when):"]
    for first in (*_ORDER, ""):
        found: dict[str, list[str]] = {}
        for patch, changes in patches.items():
            if next((word for word in _ORDER if word in changes), "") == first:
                family, _, name = patch.partition(".")
                found.setdefault(family, []).append(name)
        if found:
            said = "; ".join(f"{family}: {listed(names, _SHOWN)}" for family, names in found.items())
            lines.append(wrap(said, " " * 9, first=f"{first or 'unsaid':<9}"))
    return lines
