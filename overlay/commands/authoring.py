"""The commands for those who write patches, or programs that read what overlay prints: `new` and `schema`."""

from __future__ import annotations

import json
import os

from overlay.commands import tables

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.enabling.engine import Engine

EXIT_OK = 0

#: Beside this file.
SCHEMA = "output.schema.json"


def add(
    add_command: Callable[..., argparse.ArgumentParser],
    folder: Callable[[str], str],
    show: Callable[..., None],
) -> None:
    """Add the commands to a parser. `folder` reads the argument of --site, `show` prints JSON or a table."""
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
    schema = add_command("schema", _schema, "print the JSON schema of what the commands print with --json")
    schema.set_defaults(show=show)


def _new(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.authoring import new as _new
    from overlay.reading.source import InstalledTree

    wish = _new.Wish(
        id=arguments.id,
        project=arguments.project,
        sites=tuple(arguments.sites),
        upstream=arguments.upstream,
    )
    written = _new.write(wish, os.getcwd(), InstalledTree(arguments.site))
    arguments.show(arguments, written.to_dict(), lambda: tables.written(written))
    return EXIT_OK


def _schema(_: Engine, arguments: argparse.Namespace) -> int:
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), SCHEMA), encoding="utf-8") as file:
        text = file.read()
    arguments.show(arguments, json.loads(text), text.rstrip)
    return EXIT_OK
