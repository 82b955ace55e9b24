"""`overlay new` and `overlay digest`, for authors of patches: a folder to fill in, the digest of a site."""

from __future__ import annotations

import os

from overlay.desk import tables
from overlay.desk.output import EXIT_LOUD, EXIT_OK, add_sites, folder, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.runtime.engine import Engine


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
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
    digest = add_command("digest", _digest, "print the digest of a site's source (module:qualname)")
    digest.add_argument("sites", metavar="SITE", nargs="+")
    add_sites(digest)


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


def _digest(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.source.source import InstalledTree

    tree = InstalledTree(arguments.site, arguments.root)
    digests = {site: tree.digest(site) for site in arguments.sites}
    lines = [f"{found or '-':<14}{site}" for site, found in digests.items()]
    show(arguments, digests, lambda: "\n".join(lines))
    for site in (site for site, found in digests.items() if found is None):
        where = f"in {', '.join(arguments.site)}" if arguments.site else "in this environment"
        say(f"there is no {site} {where}")
    return EXIT_OK if all(digests.values()) else EXIT_LOUD
