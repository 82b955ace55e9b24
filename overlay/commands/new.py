"""`overlay new`: a patch's folder and its test, to be filled in."""

from __future__ import annotations

import os

from overlay.commands import tables
from overlay.commands.output import EXIT_OK, folder, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.enabling.engine import Engine


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    new = add_command("new", _new, "write a patch and its test, which fails until all is filled in")
    new.add_argument(
        "id", metavar="PATCH-ID", help="project.what-is-mended, in a pack pack/project.what-is-mended"
    )
    new.add_argument("sites", metavar="SITE", nargs="*", help="what is to be replaced (module:qualname)")
    new.add_argument("--project", metavar="P", default="", help="the project, if the id does not tell")
    new.add_argument("--upstream", metavar="REF", default="", help="owner/repo#number, or its address")
    new.add_argument(
        "--site", type=folder, metavar="DIR", help="look for SITE in this folder (or wheel) only"
    )


def _new(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.authoring.new import Wish, write
    from overlay.reading.source import InstalledTree

    wish = Wish(
        id=arguments.id,
        project=arguments.project,
        sites=tuple(arguments.sites),
        upstream=arguments.upstream,
    )
    written = write(wish, os.getcwd(), InstalledTree(arguments.site))
    show(arguments, written.to_dict(), lambda: tables.written(written))
    return EXIT_OK
