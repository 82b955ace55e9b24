"""The command for those who write patches: `new`."""

from __future__ import annotations

import os

from overlay import _render

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay._engine import Engine

EXIT_OK = 0


def add(
    add_command: Callable[..., argparse.ArgumentParser],
    folder: Callable[[str], str],
    show: Callable[..., None],
) -> None:
    """Add the command to a parser. `folder` reads the argument of --site, `show` prints JSON or a table."""
    new = add_command("new", _new, "write a patch and its test, which fails until both are filled in")
    new.add_argument(
        "id", metavar="PATCH-ID", help="project.what-is-mended, in a pack pack/project.what-is-mended"
    )
    new.add_argument("sites", metavar="SITE", nargs="*", help="what is to be replaced (module:qualname)")
    new.add_argument("--project", metavar="P", default="", help="the project, if the id does not tell")
    new.add_argument("--upstream", metavar="REF", default="", help="owner/repo#number, or its address")
    new.add_argument(
        "--site", type=folder, metavar="DIR", help="look for SITE in this folder (or wheel) only"
    )
    new.set_defaults(show=show)


def _new(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay import _new
    from overlay._source import InstalledTree

    wish = _new.Wish(
        id=arguments.id,
        project=arguments.project,
        sites=tuple(arguments.sites),
        upstream=arguments.upstream,
    )
    written = _new.write(wish, os.getcwd(), InstalledTree(arguments.site))
    arguments.show(arguments, written.to_dict(), lambda: _render.written(written))
    return EXIT_OK
