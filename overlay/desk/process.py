"""`overlay status` and `overlay doctor`: is a process that starts here patched, and if not, why?"""

from __future__ import annotations

from overlay.desk import tables
from overlay.desk.output import EXIT_LOUD, EXIT_OK, SELECTION, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.ledger import PatchStatus, Status
    from overlay.runtime.engine import Engine
    from overlay.verdict import Plan


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    status = add_command("status", _status, "enable overlay in a fresh process, and show what is armed")
    what = f"what to select (default: OVERLAY_PATCHES, or all): {SELECTION}"
    status.add_argument("--patches", metavar="SELECTION", help=what)
    what = "say whether a Python process that starts here and now is patched, and what to do if not"
    add_command("doctor", _doctor, what)


def _status(engine: Engine, arguments: argparse.Namespace) -> int:
    status = engine.enable(arguments.patches)
    engine.disable()
    status = foreseen(status, engine.plan(status.selection or ("none",)))
    show(arguments, status.to_dict(), lambda: tables.status(status))
    loud = any(
        patch.state in ("failed", "incomplete") or (patch.verdict is not None and patch.verdict.loud)
        for patch in status.patches
        if patch.patch not in status.companions
    )
    return EXIT_LOUD if loud else EXIT_OK


def foreseen(status: Status, plan: Plan) -> Status:
    """Return a ledger with the verdicts that patches will get once their modules are imported.

    A process that trains finds that out at the import of a module, when its path is complete. Here somebody
    asks about what is installed.
    """
    verdicts = {verdict.patch: verdict for verdict in plan.verdicts}

    def look(patch: PatchStatus) -> PatchStatus:
        verdict = verdicts.get(patch.patch)
        if patch.state != "armed" or patch.verdict is not None or verdict is None:
            return patch
        if verdict.verdict == "apply":
            return patch.replace(verdict=verdict)
        return patch.replace(state="skipped", reason=verdict.reason, verdict=verdict)

    return status.replace(patches=tuple(map(look, status.patches)))


def _doctor(engine: Engine, arguments: argparse.Namespace) -> int:
    from overlay.launch.doctor import examine

    found = examine(engine)
    show(arguments, found.to_dict(), lambda: tables.checkup(found))
    return EXIT_OK if found.armed else EXIT_LOUD
