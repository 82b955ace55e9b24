"""Which rank this process is, according to the variables that its launcher sets.

They are read at each call: an actor may be told its rank after it has started.
"""

from __future__ import annotations

import os
import sys

#: Variables in which launchers write a rank. They win over Slurm's, as a launcher may run under Slurm.
_RANKS = ("RANK", "LOCAL_RANK")
_TASK = "SLURM_PROCID"
#: The script that every worker of Ray runs.
_WORKER = "default_worker.py"
_drives = False


def note_driver() -> None:
    """Note that this process drives a job of Ray's: RANK is that of its pod, unless LOCAL_RANK is set too."""
    global _drives  # noqa: PLW0603 -- of the process
    _drives = True


def rank() -> int | None:
    """Return the rank of this process, `None` if no launcher has set one.

    A worker of Ray inherits the variables of the pod or Slurm task that started its node, and is neither. Nor
    is the driver of its job.
    """
    names: tuple[str, ...] = (*_RANKS, _TASK)
    if is_worker():
        names = () if _is_of_node() else _RANKS
    elif _drives and "LOCAL_RANK" not in os.environ:
        names = ()
    said = (number(name) for name in names)
    return next((one for one in said if one is not None), None)


def _is_of_node() -> bool:
    """Return whether this worker of Ray has the same rank, out of as many, as the process that started it."""
    try:
        with open(f"/proc/{os.getppid()}/environ", encoding="utf-8", errors="replace") as file:
            theirs = dict(item.partition("=")[::2] for item in file.read().split("\0"))
    except OSError:
        return False
    return all(theirs.get(name) == os.environ.get(name) for name in (*_RANKS, "WORLD_SIZE"))


def number(name: str) -> int | None:
    """Return the number in an environment variable, `None` if it is unset or holds no number."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def is_first() -> bool:
    """Return whether this is rank 0, or a process that is no rank."""
    return not rank()


def is_worker() -> bool:
    """Return whether this process is a worker of Ray, by its command line: children inherit variables."""
    return any(os.path.basename(word) == _WORKER for word in sys.orig_argv)


def rank_and_host() -> str:
    """Return the rank and the host of this process, empty if it is no rank.

    It is one word with a digit: Ray folds log lines that differ only in such words.
    """
    mine = rank()
    return "" if mine is None else f"[rank={mine},host={'-'.join(host().split())}]"


def host() -> str:
    """Return the name of the machine."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
