"""The folder of the cache: no one but this user can have written the files in it.

What lies there says what is applied, so each step goes by descriptors: the folder is opened once and looked
at as it was opened, and so is each file in it. Nothing that is put in its place in between is ever read.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import contextmanager, suppress

from overlay.errors import OverlayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of a file that is read, many times what one has.
LARGEST = 1 << 24
#: Seconds for which a process waits for another one that does the same work, and between two looks.
PATIENCE, PAUSE = 5.0, 0.01
#: Seconds after which a file is thrown away: upstreams and overlay have changed since.
AGE = 30 * 86400.0
#: Files that are kept: a trainer has two, and who changes a source again and again has ever more.
MOST = 100
_DRAFT, _LOCK, _ENDING = ".draft-", ".lock-", ".json"


def usual() -> str:
    """Return the folder of this user for what may be gone tomorrow; on most systems of this node alone."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"overlay-decided-{_own()}")  # noqa: S108 -- `Folder` looks at it


class Folder:
    """A folder, open."""

    def __init__(self, path: str, *, private: bool) -> None:
        """Open a folder, which is made if it is not there.

        Args:
            path: Where it lies.
            private: Whether it must be this user's, and lie at that very path. One that somebody has named
                may also be the administrator's, and lie behind a link.

        Raises:
            OverlayError: Somebody else may write to it, or this system cannot tell.
            OSError: It cannot be made or opened.

        """
        if not {os.open, os.rename, os.unlink, os.stat} <= os.supports_dir_fd:
            raise OverlayError("this system has no descriptors of folders")
        if private:
            # Where it is to lie is nobody's to make: what is temporary would go there from then on.
            if not os.path.isabs(path):
                raise OverlayError(f"{path} is not an absolute path")
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
        else:
            os.makedirs(path, mode=0o700, exist_ok=True)
        only = os.O_NOFOLLOW if private else 0
        self._path = path
        self._private = private
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | only)
        try:
            self._check(self._folder, path)
        except OverlayError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it."""
        os.close(self._folder)

    def read(self, name: str) -> str | None:
        """Return what is in a file, `None` if there is none. Raises `OverlayError` if it may be another's."""
        try:
            # (A pipe would keep whoever opens it waiting.)
            file = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder
            )
        except FileNotFoundError:
            return None
        with open(file, encoding="utf-8") as stream:
            found = self._check(file, os.path.join(self._path, name))
            if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
                raise OverlayError(f"{name} is no file of at most {LARGEST} bytes")
            return stream.read()

    def write(self, name: str, text: str) -> None:
        """Write a file in one step: whoever reads it finds all of it or what was there before."""
        draft = f"{_DRAFT}{os.getpid()}-{os.urandom(4).hex()}"
        making = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(draft, making, 0o600, dir_fd=self._folder), "w", encoding="utf-8") as stream:
            try:
                stream.write(text)
                stream.flush()
                os.replace(draft, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            except BaseException:
                os.unlink(draft, dir_fd=self._folder)
                raise
        self._throw_away()

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Keep others from doing the same work, for as long as they have patience, or the system can."""
        from fcntl import LOCK_EX, LOCK_NB, flock

        making = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(f"{_LOCK}{name}", making, 0o600, dir_fd=self._folder), "rb") as stream:
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    flock(stream, LOCK_EX | LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() < end:
                        time.sleep(PAUSE)
                        continue
                except OSError:  # not on this file system: then each does it
                    pass
                break
            try:
                yield
            finally:
                from fcntl import LOCK_UN

                with suppress(OSError):  # for the child of a fork has the descriptor too
                    flock(stream, LOCK_UN)

    def _check(self, descriptor: int, path: str) -> os.stat_result:
        found = os.fstat(descriptor)
        owners = (_own(),) if self._private else (_own(), 0)
        if found.st_uid not in owners or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            msg = f"others may write to {path}, and so could say what is applied here (chmod go-w)"
            raise OverlayError(msg)
        return found

    def _throw_away(self) -> None:
        """Remove what is old, and of what is not all but the newest: nobody else does."""
        found = []
        for name in os.listdir(self._folder):
            if name.endswith(_ENDING) or name.startswith((_DRAFT, _LOCK)):
                with suppress(OSError):
                    at = os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mtime
                    found.append((at, name))
        found.sort(reverse=True)
        before = time.time() - AGE
        for place, (at, name) in enumerate(found):
            if at < before or place >= MOST:
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._folder)


def _own() -> int:
    return getattr(os, "geteuid", lambda: -1)()
