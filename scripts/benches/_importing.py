"""Import what a trainer imports, and print what that took: `_importing.py WHAT HOW [FOLDER]`, as JSON.

A program of its own: what was imported before would not be imported again. HOW is `plain`, `armed`, or
`unknown`: armed, and nothing is known of any source. With overlay its parts are printed too. All is processor
time in seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Time by part, and the parts that are being run. What a part does within another is not counted twice.
_times: dict[str, float] = {}
_within: list[list[Any]] = []


def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that adds what it takes to a part."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        begin = time.process_time()
        _within.append([part, 0.0])
        try:
            return function(*arguments, **keywords)
        finally:
            took = time.process_time() - begin
            _, inner = _within.pop()
            _times[part] = _times.get(part, 0.0) + took - inner
            if _within:
                _within[-1][1] += took

    return run


def watch() -> None:
    """Time the parts of overlay from here on."""
    from overlay.runtime import engine, session, sites
    from overlay.source.source import InstalledTree

    for owner, name, part in (
        (session.Session, "_imported", "rest"),
        (engine.Engine, "known", "patches"),
        (engine.Engine, "_lock_of", "lock"),
        (InstalledTree, "source", "reading"),
        (InstalledTree, "read", "reading"),
        (session, "decide_all", "deciding"),
        (InstalledTree, "let_go", "deciding"),
        (sites, "rebind", "searching"),
        (sites, "sole_names", "searching"),
        (session, "prepare", "installing"),
        (session, "put", "installing"),
    ):
        setattr(owner, name, timed(part, getattr(owner, name)))


def verl() -> None:
    """Import verl's Megatron engine, as a worker does."""
    from overlay.compat import verl_imports

    verl_imports.stand_in()
    from verl.workers.engine.megatron import transformer_impl  # noqa: F401


def slime() -> None:
    """Import slime's actor, as a Ray worker does."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "shared"))
    import slime_actor_on_cpu

    slime_actor_on_cpu.prepare()
    slime_actor_on_cpu.actor_class()


def main() -> None:
    """Import, and print."""
    what, how, *folders = sys.argv[1:]
    sys.path[:0] = folders
    begin = time.process_time()
    if how != "plain":
        import overlay

        enable = timed("enable()", overlay.enable)
        enable()
        watch()
    if how == "unknown":
        from overlay.runtime import session

        vars(session)["tables"] = lambda: None
    {"verl": verl, "slime": slime}[what]()
    total = time.process_time() - begin
    applied = []
    if how != "plain":
        applied = [patch.patch for patch in overlay.status().patches if patch.state == "applied"]
    print(json.dumps({"total": total, "parts": _times, "applied": applied}))


if __name__ == "__main__":
    main()
