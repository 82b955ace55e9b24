"""`overlay digest`: what stands at a site, in 12 digits."""

from __future__ import annotations

from overlay.commands.output import EXIT_LOUD, EXIT_OK, add_sites, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from overlay.enabling.engine import Engine


def add(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    digest = add_command("digest", _digest, "print the digest of a site's source (module:qualname)")
    digest.add_argument("sites", metavar="SITE", nargs="+")
    add_sites(digest)


def _digest(_: Engine, arguments: argparse.Namespace) -> int:
    from overlay.reading.source import InstalledTree

    tree = InstalledTree(arguments.site, arguments.root)
    digests = {site: tree.digest(site) for site in arguments.sites}
    lines = [f"{found or '-':<14}{site}" for site, found in digests.items()]
    show(arguments, digests, lambda: "\n".join(lines))
    for site in (site for site, found in digests.items() if found is None):
        where = f"in {', '.join(arguments.site)}" if arguments.site else "in this environment"
        say(f"there is no {site} {where}")
    return EXIT_OK if all(digests.values()) else EXIT_LOUD
