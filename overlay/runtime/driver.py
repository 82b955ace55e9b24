"""What does a worker of Ray know of its job's driver? Whether it is patched, and which code it has loaded.

A driver sends the code in `LOADED`. A node may have been left out of an upgrade, and Ray keeps environments
that it made before.
"""

from __future__ import annotations

import os

from overlay.model import settings
from overlay.source.registry import code_in_use

#: Said by a worker to which no driver has sent anything: one that is patched does.
UNPATCHED = (
    "Ray: this worker is patched, but the driver of its job does not seem to be: classes that Ray "
    "pickles by value, such as those of the script, are upstream's. What to do: start the driver with "
    "`overlay run`, or with OVERLAY=1 in its environment; or have no worker patched, by OVERLAY=0 in the "
    "env_vars of its runtime_env"
)
_DIFFERENT = (
    "Ray: this worker runs different code from the driver of its job: {}. What to do: install the same on "
    "every node, and start the job anew if that was done after it began; environments that Ray has made for "
    "`pip` or `uv` in a runtime_env stay until `ray stop`"
)


def loaded() -> str:
    """Return which code this process has loaded, as a driver says it in `LOADED`."""
    return "; ".join(f"{name} {digest}" for name, digest in _code().items())


def difference() -> str:
    """Return a sentence if this worker has loaded other code than the driver of its job, else nothing.

    A pack that only one of the two uses was chosen so.
    """
    said = os.environ.get(settings.LOADED, "").split("; ")
    theirs = dict(one.rsplit(" ", 1) for one in said if " " in one)
    ours = _code() if theirs else {}
    found = [
        f"{name} (here {ours[name]}, there {digest})"
        for name, digest in theirs.items()
        if ours.get(name, digest) != digest
    ]
    return _DIFFERENT.format(", ".join(found)) if found else ""


def _code() -> dict[str, str]:
    return {name: digest[:12] for name, digest in code_in_use().items()}
