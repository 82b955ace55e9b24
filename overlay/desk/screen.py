"""Bare `overlay`: what is installed, what is done to it and what comes next, on one screen of 80 columns."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from overlay._version import __version__
from overlay.errors import OverlayError
from overlay.launch.doctor import NO, examine
from overlay.model.record import TYPE_CHECKING, Record
from overlay.model.text import table, wrap
from overlay.source.installed import Installed, installed
from overlay.source.registry import environment
from overlay.verdict import Verdict  # noqa: TC001 -- a field type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.launch.doctor import Checkup
    from overlay.runtime.engine import Engine

#: Stands for the command that starts a job where no project is known to be installed.
_COMMAND = "torchrun --nproc-per-node 8 train.py"
_LOCK = "overlay.lock"
#: The order in which people want to know: does my training change, does it fit, does it go on?
_ORDER = ("numbers", "memory", "hangs", "crashes", "speed", "safety")
#: Ids in a sentence, at most.
_NAMED = 4
#: Patches of one project that are named for one thing that they change; `overlay plan` names all.
_SHOWN = 12


class Cockpit(Record):
    """What is installed, what is done to it, whether that is in force, and what comes next."""

    #: Of overlay.
    version: str
    python: str
    executable: str
    #: The projects that patches are for, and what runs beneath them, also those that are not installed.
    projects: tuple[Installed, ...]
    #: The selected patches that apply, each with what changes in a job, of `overlay.patch.CHANGES`.
    patches: dict[str, tuple[str, ...]]
    #: What is decided on the selected patches that cannot be applied.
    refused: tuple[Verdict, ...]
    #: Ids of the known defects that are here and that a selected patch fixes.
    mended: tuple[str, ...]
    #: Ids of those that are here and stay: no patch fixes them, or it is not selected.
    left: tuple[str, ...]
    #: Ids of those that may be here or not: nobody has looked at this source.
    unknown: tuple[str, ...]
    #: Whether a Python process that starts here and now is patched.
    armed: bool
    #: Why not, empty if it is.
    reason: str
    #: The next command, or what to install.
    next: str
    #: The stack above an upstream that is installed, with its version and on what; empty if none is.
    stack: str = ""


def look(engine: Engine) -> Cockpit:
    """Look at what is here. Nothing of an upstream is imported. Raises `OverlayError` for a broken pack."""
    from overlay.desk.audit.audit import make_audit
    from overlay.source.source import InstalledTree

    known, tree = engine.known(), InstalledTree()
    everything = engine.plan_each(tree)
    applied: dict[str, tuple[str, ...]] = {}
    refused: tuple[Verdict, ...] = ()
    with suppress(OverlayError):  # the checkup says what is wrong with the selection
        chosen = engine.plan(None, tree)
        here = {one.patch for one in chosen.verdicts if one.verdict == "apply"}
        applied = {name: known[name].changes for name in chosen.selection if name in here}
        refused = tuple(chosen.loud)
    audit = make_audit(engine, everything, tree, selected=applied)
    checkup = examine(engine)
    wrong = [check for check in checkup.checks if check.answer == NO]
    # A wrong selection first, OVERLAY last, as a job sets it. What is wrong with a setting has its name.
    wrong.sort(key=lambda check: (not check.todo, check.name == "OVERLAY", check.name != "selection"))
    reasons = [check.found if check.name == "selection" else f"{check.name} {check.found}" for check in wrong]
    projects, stacks = engine.installed(tree), installed(environment().STACKS, tree)
    wanted = {target.project.name for patch in known.values() for target in patch.targets}
    return Cockpit(
        version=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        executable=sys.executable,
        projects=projects,
        patches=applied,
        refused=refused,
        mended=tuple(one.defect for one in audit.of("mended")),
        left=tuple(one.defect for one in audit.of("open")),
        unknown=tuple(one.defect for one in audit.of("unknown-source")),
        armed=checkup.armed,
        reason=reasons[0] if reasons else "",
        next=_next(checkup, applied, refused, {one.project for one in projects if one.version}, wanted),
        stack=next(
            (f"{one.project} {one.version} on its {environment().BENEATH}" for one in stacks if one.version),
            "",
        ),
    )


def _next(
    checkup: Checkup,
    applied: Mapping[str, tuple[str, ...]],
    refused: Sequence[Verdict],
    there: set[str],
    wanted: set[str],
) -> str:
    """Return what to do: install something, correct a setting, look at a refused patch, start a job, pin it.

    `there`: the projects that are installed. `wanted`: those that patches are for.
    """
    if not there & wanted:
        return f"install overlay into the Python that has {' or '.join(sorted(wanted))}"
    wrong = {check.name for check in checkup.checks if check.answer == NO and check.todo}
    if wrong - {"OVERLAY"}:
        return "overlay doctor"
    if refused:
        return f"overlay explain {refused[0].patch}"
    if not applied:
        return "overlay audit"
    if wrong:
        pin = f" --pin {_LOCK}" if os.path.isfile(_LOCK) else ""
        command = next((words for name, words in environment().STARTED.items() if name in there), _COMMAND)
        return f"overlay run{pin} {command}"
    pinned = any(check.name == "pin" and check.answer != "-" for check in checkup.checks)
    return "overlay plan" if pinned else "overlay lock"


def screen(item: Cockpit) -> str:
    """Return what bare `overlay` prints: bad news first."""
    before = ""
    rows = [("Python", item.python, item.executable)]
    for one in item.projects:
        if one.version:
            rows.append((one.project, one.version, "same folder" if one.where == before else one.where))
            before = one.where
    lines = [table((f"overlay {item.version}", "version", "where"), rows)]
    if absent := [one.project for one in item.projects if not one.version]:
        lines.append(wrap(f"not installed: {', '.join(absent)}"))
    lines += ["", *_refused(item.refused), *_patches(item.patches, item.stack, armed=item.armed)]
    present = len(item.mended) + len(item.left)
    count = f"{present} known defect{'s' * (present != 1)} here"
    patched = "patched" if item.armed else "would be patched"
    text = f"{count}: {len(item.mended)} {patched}, {len(item.left)} not"
    lines.append(wrap(f"{text} ({_some(item.left)}; `overlay audit`)" if item.left else text))
    if item.unknown:
        lines.append(wrap(f"not known for this source: {_some(item.unknown)}"))
    active = "active: yes, in every Python process that starts here and now"
    lines.append(active if item.armed else wrap(f"active: no, {item.reason}", " " * 8, first=""))
    if item.next.startswith("overlay run"):
        return "\n".join([*lines, "next, before the command that starts your job:", f"  {item.next}"])
    return "\n".join([*lines, wrap(f"next: {item.next}", " " * 6, first="")])


def _refused(items: Sequence[Verdict]) -> list[str]:
    """Return what was asked for and is not done: each with its reason, or of many the ids by verdict."""
    if not items:
        return []
    lines = [f"{len(items)} selected patch{'es' if len(items) > 1 else ''} CANNOT BE APPLIED:"]
    if len(items) <= _NAMED:
        lines += [wrap(f"{one.patch}: {one.verdict}, {one.reason}", " " * 4, first="  ") for one in items]
    else:
        for verdict in dict.fromkeys(one.verdict for one in items):
            ids = ", ".join(one.patch for one in items if one.verdict == verdict)
            lines.append(wrap(f"{verdict}: {ids}", " " * 4, first="  "))
    return [*lines, ""]


def _patches(patches: Mapping[str, tuple[str, ...]], stack: str, *, armed: bool) -> list[str]:
    """Return the patches that apply, as `project: name, name`, by what they change first of all."""
    lines = [f"{stack}:"] if stack else []
    if not patches:
        return [*lines, "no selected patch applies here"]
    count = f"{len(patches)} patch{'es' * (len(patches) > 1)}"
    apply = f"appl{'y' if len(patches) > 1 else 'ies'}" if armed else "would apply"
    lines.append(f"{count} {apply}, by what they change (overlay explain ID says when):")
    for first in (*_ORDER, ""):
        families: dict[str, list[str]] = {}
        for patch, changes in patches.items():
            if next((word for word in _ORDER if word in changes), "") == first:
                family, _, name = patch.partition(".")
                families.setdefault(family, []).append(name)
        if families:
            said = "; ".join(f"{family}: {_some(names, _SHOWN)}" for family, names in families.items())
            lines.append(wrap(said, " " * 9, first=f"{first or 'unsaid':<9}"))
    return lines


def _some(names: Sequence[str], most: int = _NAMED) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
