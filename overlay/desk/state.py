"""Everything the cockpit shows, as data."""

from __future__ import annotations

import os
import sys

from overlay._version import __version__
from overlay.errors import OverlayError
from overlay.launch.doctor import NO, examine
from overlay.model.record import Record
from overlay.source.installed import Installed  # noqa: TC001 -- a field type
from overlay.source.registry import starting_commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from overlay.launch.doctor import Checkup
    from overlay.runtime.engine import Engine

#: What stands for the command that starts a job of a project that nothing is known of.
_COMMAND = "torchrun --nproc-per-node 8 train.py"
_LOCK = "overlay.lock"


class Applying(Record):
    """A patch that is selected and applies to what is installed."""

    patch: str
    #: What changes in a job that runs, of `overlay.patch.CHANGES`; empty if the patch does not say.
    changes: tuple[str, ...]


class Defects(Record):
    """Known defects of what is installed, each by the id under which it is known."""

    #: Present, and mended by a patch that is selected.
    mended: tuple[str, ...]
    #: Present, and left as they are: no patch mends them, or it is not selected.
    left: tuple[str, ...]
    #: Neither known to be there nor not to be there: the source is one that nobody has looked at.
    unknown: tuple[str, ...]

    @property
    def present(self) -> int:
        """How many there are."""
        return len(self.mended) + len(self.left)

    def to_dict(self) -> dict[str, Any]:
        """Return how many there are, and which, as plain data."""
        return {"present": self.present, **super().to_dict()}


class Cockpit(Record):
    """What is installed, what is done to it, whether that is in force, and what comes next."""

    #: Of overlay.
    version: str
    python: str
    executable: str
    #: The projects that patches are for, and what runs beneath them, also those that are not installed.
    projects: tuple[Installed, ...]
    patches: tuple[Applying, ...]
    #: Ids of patches that are selected and cannot be applied to what is installed.
    refused: tuple[str, ...]
    defects: Defects
    #: Whether a Python process that starts here and now is patched.
    armed: bool
    #: Why not, empty if it is.
    reason: str
    #: The next command.
    next: str


def look(engine: Engine) -> Cockpit:
    """Look at what is here. Nothing of an upstream is imported. Raises `OverlayError` for a broken pack."""
    from overlay.desk.audit.audit import make_audit
    from overlay.source.source import InstalledTree

    known, tree = engine.known(), InstalledTree()
    everything = engine.plan_each(tree)
    try:
        chosen = engine.plan(None, tree)
        verdicts = [one for one in chosen.verdicts if one.patch in chosen.selection]
        refused = tuple(one.patch for one in chosen.loud)
    except OverlayError:  # the checkup says what is wrong with the selection
        verdicts, refused = [], ()
    applied = tuple(one.patch for one in verdicts if one.verdict == "apply")
    audit = make_audit(engine, everything, tree, selected=applied)
    mended, left, unknown = (
        tuple(one.defect for one in audit.of(state)) for state in ("mended", "open", "unknown-source")
    )
    checkup = examine(engine)
    projects = engine.installed(tree)
    return Cockpit(
        version=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        executable=sys.executable,
        projects=projects,
        patches=tuple(Applying(patch=name, changes=known[name].changes) for name in applied),
        refused=refused,
        defects=Defects(mended=mended, left=left, unknown=unknown),
        armed=checkup.armed,
        reason=_reason(checkup),
        next=_next(checkup, applied, refused, _command(projects)),
    )


def _reason(checkup: Checkup) -> str:
    """Return the most important failed check: a wrong selection first, OVERLAY last, as a job sets it."""
    wrong = [check for check in checkup.checks if check.answer == NO]
    wrong.sort(key=lambda check: (not check.todo, check.name == "OVERLAY", check.name != "selection"))
    # What is wrong with a setting has its name.
    said = (check.found if check.name == "selection" else f"{check.name} {check.found}" for check in wrong)
    return next(said, "")


def _command(projects: tuple[Installed, ...]) -> str:
    """Return the command that starts a job of what is installed."""
    there = {one.project for one in projects if one.version}
    return next((words for name, words in starting_commands().items() if name in there), _COMMAND)


def _next(checkup: Checkup, applied: tuple[str, ...], refused: tuple[str, ...], command: str) -> str:
    wrong = {check.name for check in checkup.checks if check.answer == NO and check.todo}
    pin = f" --pin {_LOCK}" if os.path.isfile(_LOCK) else ""
    if wrong - {"OVERLAY"}:
        return "overlay doctor"
    if refused:
        return f"overlay explain {refused[0]}"
    if not applied:
        return "overlay audit --site DIR"
    if wrong:
        return f"overlay run{pin} {command}"
    pinned = any(check.name == "pin" and check.answer != "-" for check in checkup.checks)
    return "overlay status" if pinned else "overlay lock"
