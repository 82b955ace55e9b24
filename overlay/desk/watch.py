"""Watches from outside what a command starts: a Python that is not patched cannot say so itself.

`overlay run` becomes the command. Before that, it leaves a process that only looks on, in a session
of its own, until the command has ended. Processes in which overlay is enabled report to it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from overlay.desk.output import remark
from overlay.model.settings import WATCH, says_no
from overlay.model.watched import BEGUN, ENABLED, announce, program_of, stat_of

#: What a Python that trains has loaded, by the beginning of the file's name.
_TORCH = b"/libtorch_python"
#: How many words of a command are shown.
_WORDS = 4
#: Seconds between two looks: a tenth of how long the command runs, and not more than this.
_SELDOM, _PART = 30.0, 0.1
#: Seconds until it is noticed that the command has ended.
_BRIEF = 0.5
#: Seconds until the command is started, whether it is watched or not.
_PATIENCE = 10.0
#: What the process that watches runs, is given, and is called. No word of the command is among its own, nor
#: is it called Python: what looks for the job, or ends it, must not find this.
_GIVEN, _NAME = "OVERLAY_WATCHES", "overlay-watch"
_CODE = (
    "import sys; del sys.path[0]; from json import loads; from os import environ; "
    f"given = loads(environ['{_GIVEN}']); sys.path.append(given.pop(0)); "
    "from overlay.desk.watch import main; main(*given)"
)


def watch(environ: dict[str, str], name: str = "") -> None:
    """Leave a process that watches this one, which is to become a command with this environment.

    It says which Python has loaded torch without overlay. If the command has a `name`, it says at the end
    that nothing was patched, if that is so. Where it cannot be started, nothing is said.
    """
    if not os.path.isfile("/proc/self/stat"):
        return
    if os.getpid() == 1:  # which takes in all processes that are left, and may wait for them
        remark(
            "nothing looks on for a Python without overlay, as the command is the first process of its "
            "container: `docker run --init` starts another one before it"
        )
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        address = f"overlay-{os.getpid()}-{time.time_ns()}"
        heard.bind(f"\0{address}")
        folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        given = json.dumps([folder, os.getpid(), address, heard.fileno(), name])
        ready, done = os.pipe()
        child = os.fork()
        if not child:
            _become(given, (heard.fileno(), done))
        environ[WATCH] = " ".join([*announce(ENABLED), address])
        os.close(done)
        select.select([ready], [], [], _PATIENCE)
        os.close(ready)
        os.waitpid(child, 0)  # raises where somebody has this process ignore its children


def _become(given: str, kept: tuple[int, ...]) -> None:
    """Become the process that watches, as nobody's child."""
    try:
        os.setsid()
        if not os.fork():
            for at in kept:
                os.set_inheritable(at, True)  # noqa: FBT003 -- it takes no keyword
            environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            words = [sys.executable, "-sS", "-c", _CODE]
            os.execve(sys.executable, words, {**environ, _GIVEN: given})  # noqa: S606 -- this Python
    finally:
        os._exit(0)


def main(watched: int, address: str, kept: int, name: str) -> None:
    """Watch a process, and listen at a socket that is open already."""
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(_NAME)
    os.chdir("/")
    _let_go(kept)
    with socket.socket(fileno=kept) as heard:
        Watcher(watched, address, heard).watch(name)


def _let_go(kept: int) -> None:
    """Close what somebody waits for: a pipe, or the file of a lock. Standard error is needed."""
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

    def __init__(self, watched: int, address: str, heard: socket.socket) -> None:
        self._watched, self._since = watched, _stat(watched)[2]
        self._address = address.encode()
        self._heard = heard
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
                with suppress(Exception):  # whatever is odd about one process, the next look may be at others
                    self._look()
                look = now + min(_SELDOM, _PART * (now - start))
        self._listen()
        if name and not self._has_begun and not self._named:
            remark(
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
                if program in self._enabled or _TORCH not in _read(pid, "maps"):
                    continue
                self._listen()
                fault = "" if program in self._enabled else self._fault(pid)
                words = _read(pid, "cmdline").split(b"\0")[:_WORDS]
                command = " ".join(os.fsdecode(b" ".join(words)).split())
                if fault and command not in self._named:
                    self._named.add(command)
                    remark(f"NOT patched: process {pid} has loaded torch, and {fault}: {command}")

    def _fault(self, pid: int) -> str:
        """Return why a Python that was not heard of is not patched, empty if it may be or is not to be."""
        switch = _variable(pid, "OVERLAY")
        if says_no(switch):
            return ""
        if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
            return ""  # it cannot be heard from there
        if self._is_ours(pid):
            return "overlay is not enabled in it"
        return "" if switch else "has not got the variables of `overlay run`"

    def _is_ours(self, pid: int) -> bool:
        """Return whether a process has got the variables of this command."""
        with suppress(OSError):  # it has ended, or is somebody else's
            return self._address in os.fsencode(_variable(pid, WATCH) or "").split()
        return False

    def _started(self) -> Iterator[int]:
        """Yield the command's process and what it has started, also what has left it since."""
        below: dict[int, list[int]] = {}
        there = [*map(int, filter(str.isdigit, os.listdir("/proc")))]
        for pid in there:
            below.setdefault(_stat(pid)[0], []).append(pid)
        found = {self._watched, *filter(self._is_ours, there)}
        waiting = [*found]
        for pid in waiting:  # it grows
            new = [one for one in below.get(pid, ()) if one not in found]
            found.update(new)
            waiting += new
        yield from found - {os.getpid()}


def _variable(pid: int, name: str) -> str | None:
    """Return a variable that a process began with, `None` if it had none. Raises `OSError`."""
    begin = f"{name}=".encode()
    found = [one for one in _read(pid, "environ").split(b"\0") if one.startswith(begin)]
    return os.fsdecode(found[0].removeprefix(begin)) if found else None


def _stat(pid: int) -> tuple[int, str, str]:
    """Return the parent of a process, its state, and when it started; 0 and nothing if it has ended."""
    with suppress(OSError):
        fields = stat_of(pid)
        return int(fields[1]), fields[0], fields[19]
    return 0, "", ""


def _read(pid: int, what: str) -> bytes:
    with open(f"/proc/{pid}/{what}", "rb") as file:
        return file.read()
