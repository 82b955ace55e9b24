"""Fetch an image of slime's: slime, and its Megatron under slime's diff, from the network if need be.

What `SLIME_REPO` and `MEGATRON_REPO` name is taken if they are set (`git_sources.py`). Else the commits are
fetched from GitHub by git, without their history, into `.cache/sources`, once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sources import git_sources, releases
from sources.git_sources import CLONES, UPSTREAMS, FetchError

#: The releases whose training step is run.
RELEASES = ("v0.2.4", "v0.3.1")
#: What is fetched of each upstream, under the name that it gets: a server wants all digits of a commit.
COMMITS = {
    "slime": {f"refs/tags/{release}": f"refs/tags/{release}" for release in RELEASES},
    "megatron": {
        "3714d81d418c9f1bca4594fc35f9e8289f652862": "refs/heads/at-3714d81d",
        "1dcf0dafa884ad52ffb243625717a3471643e087": "refs/heads/at-1dcf0daf",
    },
}
HOST = "https://github.com"
#: Seconds for a repository: Megatron's has tens of megabytes.
PATIENCE = 900


def fetch(release: str) -> Path:
    """Return the folder of slime's image of a release, to be put first on the path.

    Raises:
        FetchError: a part of it cannot be had.

    """
    line = next(line for line in releases.read() if line.name == f"slime image {release}")
    try:
        return releases.fetch(line)
    except FetchError:
        missing = [project for project in COMMITS if not os.environ.get(UPSTREAMS[project].variable)]
        if not missing:
            raise
        for project in missing:
            os.environ[UPSTREAMS[project].variable] = str(from_network(project))
    return releases.fetch(line)


def script(release: str, name: str = "train.py") -> bytes:
    """Return a file of slime's that is in no package. Raises `FetchError`."""
    if not os.environ.get(UPSTREAMS["slime"].variable):
        os.environ[UPSTREAMS["slime"].variable] = str(from_network("slime"))
    return git_sources.show("slime", release, name)


def from_network(project: str) -> Path:
    """Return a repository with the commits of an upstream, fetched first if it is not there yet."""
    origin = f"{HOST}/{UPSTREAMS[project].origin}"
    wanted = [f"+{commit}:{name}" for commit, name in COMMITS[project].items()]

    def fill(into: Path) -> None:
        print(f"fetching {origin} (once) ...", file=sys.stderr, flush=True)
        git_sources.git("init", "--quiet", "--bare", str(into))
        command = ["git", "-C", str(into), "fetch", "--quiet", "--depth=1", origin, *wanted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise FetchError(f"{origin}: nothing after {PATIENCE} s") from error
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            variable = UPSTREAMS[project].variable
            msg = f"{origin}: {said[-1]} (or let {variable} name a clone of it, or a git bundle)"
            raise FetchError(msg)

    return git_sources.whole(CLONES / f"{project}-network.git", fill)
