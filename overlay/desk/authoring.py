"""`overlay new`, for authors of patches: the files of one, to be filled in."""

from __future__ import annotations

import os

from overlay.desk import tables
from overlay.desk.output import EXIT_OK, folder, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.runtime.engine import Engine


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    new = add_command("new", _new, "write the files of a patch, and of a pack for it, to be filled in")
    new.add_argument("id", metavar="PATCH-ID", help="project.what-is-mended")
    new.add_argument("sites", metavar="SITE", nargs="*", help="what is to be replaced (module:qualname)")
    new.add_argument(
        "--pack", metavar="NAME", default="", help="for this pack, which is begun if it is not there"
    )
    new.add_argument("--upstream", metavar="REF", default="", help="owner/repo#number, or its address")
    new.add_argument(
        "--site", type=folder, metavar="DIR", help="look for SITE in this folder (or wheel) only"
    )


def _new(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.desk.new import Wish, write
    from overlay.source.source import InstalledTree

    wish = Wish(
        id=arguments.id,
        pack=arguments.pack,
        sites=tuple(arguments.sites),
        upstream=arguments.upstream,
    )
    written = write(wish, os.getcwd(), InstalledTree(arguments.site))
    show(arguments, written.to_dict(), lambda: tables.written(written))
    return EXIT_OK
