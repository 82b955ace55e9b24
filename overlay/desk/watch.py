"""Watches from outside what a command starts: a Python that is not patched cannot say so itself.

`overlay run` becomes the command. Before that, it leaves a process that only looks on, in a session
of its own, until the command has ended. Processes in which overlay is enabled report to it.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from overlay.desk.processes import marked
from overlay.launch.interpreter import is_python
from overlay.model.settings import WATCH, says_no
from overlay.model.watched import BEGUN, ENABLED, announce, program_of, stat_of

#: What a process that trains has loaded, by the beginning of the file's name.
_TORCH = "/libtorch_"
#: How many words of a command are shown.
_WORDS = 4
#: Seconds between two looks: a tenth of how long the command runs, and not more than this.
_SELDOM, _PART = 30.0, 0.1
#: Seconds until it is noticed that the command has ended.
_BRIEF = 0.5


def watch(environ: dict[str, str], say: Callable[[str], None], name: str = "") -> None:
    """Leave a process that watches this one, which is to become a command with this environment.

    It says which Python has loaded torch without overlay. If the command has a `name`, it says at the end
    that nothing was patched, if that is so. One that watches already is enough. Where it cannot be started,
    nothing is said.
    """
    if not os.path.isfile("/proc/self/stat") or announce(ENABLED):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        address = f"overlay-{os.getpid()}-{time.time_ns()}"
        heard.bind(f"\0{address}")
        watched = os.getpid()
        child = os.fork()
        if child:
            environ[WATCH] = address
            os.waitpid(child, 0)  # raises where somebody has this process ignore its children
            return
        try:
            os.setsid()
            if not os.fork():
                _let_go(heard.fileno())
                Watcher(watched, address, heard, say).watch(name)
        finally:
            os._exit(0)


def _let_go(kept: int) -> None:
    """Close what somebody may wait for: a pipe, or the file of a lock. Standard error is needed."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for at in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if at in (2, kept):
                continue
            if at < 2:  # noqa: PLR2004 -- standard input and output
                os.dup2(nothing, at)
            else:
                os.close(at)


class Watcher:
    """Watches the processes of a command."""

    def __init__(self, watched: int, address: str, heard: socket.socket, say: Callable[[str], None]) -> None:
        self._watched, self._since = watched, _stat(watched)[2]
        self._mark = f"{WATCH}={address}"
        self._heard, self._say = heard, say
        heard.settimeout(0.0)
        self._has_begun = False
        #: The programs, as processes execute them, in which overlay is enabled.
        self._enabled = {"0"}  # where nothing can be told of one
        #: The commands that were named.
        self._named: set[str] = set()

    def watch(self, name: str) -> None:
        """Look until the command has ended."""
        ends: list[int] = []
        with suppress(AttributeError, OSError):  # an older kernel, or a Python that was built for one
            ends = [os.pidfd_open(self._watched)]
        start = look = time.monotonic()
        while self._runs():
            select.select([self._heard.fileno(), *ends], [], [], _BRIEF)
            self._listen()
            if (now := time.monotonic()) >= look:
                self._look()
                look = now + min(_SELDOM, _PART * (now - start))
        self._listen()
        if name and not self._has_begun and not self._named:
            self._say(
                f"heard of no process that {name} started here and that imported, with overlay enabled, a "
                "module that a patch is for; what runs in a container, on another machine or in a cluster "
                "that was there before says so in its own log"
            )

    def _runs(self) -> bool:
        _, state, since = _stat(self._watched)
        return since == self._since and state not in "ZX"

    def _listen(self) -> None:
        with suppress(BlockingIOError):  # there is no more
            while True:
                word, _, program = self._heard.recv(64).decode(errors="replace").partition(" ")
                self._enabled.add(program)
                self._has_begun |= word == BEGUN

    def _look(self) -> None:
        for pid in self._started():
            with suppress(OSError):  # it has ended, or is somebody else's
                program = program_of(pid)
                if not is_python(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")):
                    continue
                if program in self._enabled or _TORCH not in os.fsdecode(_read(pid, "maps")):
                    continue
                self._listen()
                fault = "" if program in self._enabled else self._fault(pid)
                words = _read(pid, "cmdline").split(b"\0")[:_WORDS]
                command = " ".join(os.fsdecode(b" ".join(words)).split())
                if fault and command not in self._named:
                    self._named.add(command)
                    self._say(f"NOT patched: process {pid} has loaded torch, and {fault}: {command}")

    def _fault(self, pid: int) -> str:
        """Return why a Python that was not heard of is not patched, empty if it may be or is not to be."""
        variables = _read(pid, "environ").split(b"\0")
        switches = [one for one in variables if one.startswith(b"OVERLAY=")]
        if any(says_no(os.fsdecode(one).partition("=")[2]) for one in switches):
            return ""
        if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
            return ""  # it cannot be heard from there
        if self._mark.encode() in variables:
            return "overlay is not enabled in it"
        return "" if switches else "has not got the variables of `overlay run`"

    def _started(self) -> Iterator[int]:
        """Yield the command's process and what it has started, also what has left it since."""
        below: dict[int, list[int]] = {}
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            below.setdefault(_stat(pid)[0], []).append(pid)
        found = {self._watched, *marked(self._mark)}
        waiting = [*found]
        for pid in waiting:  # it grows
            new = [one for one in below.get(pid, ()) if one not in found]
            found.update(new)
            waiting += new
        yield from found - {os.getpid()}


def _stat(pid: int) -> tuple[int, str, str]:
    """Return the parent of a process, its state, and when it started; 0 and nothing if it has ended."""
    with suppress(OSError):
        fields = stat_of(pid)
        return int(fields[1]), fields[0], fields[19]
    return 0, "", ""


def _read(pid: int, what: str) -> bytes:
    with open(f"/proc/{pid}/{what}", "rb") as file:
        return file.read()
