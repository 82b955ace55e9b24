"""The history of an upstream's branch, read from git objects: nothing is checked out and nothing imported.

Sources are parsed once for each blob, however many commits have it.
"""

from __future__ import annotations

import ast
import subprocess
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from overlay.errors import SourceError
from overlay.source.shape import Module
from overlay.source.source import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from overlay.patch import Project

#: What git says of a file that is not there.
_NONE = "0" * 40
#: Syntax trees that are kept at a time: one of a large module takes tens of megabytes.
_KEPT = 48


class HistoryError(RuntimeError):
    """A history that cannot be read, with what to do about it."""


class Commit(NamedTuple):
    """A commit of the branch, and when the branch got there."""

    name: str
    #: Seconds since 1970, never less than those of the commit before.
    time: int
    #: Path to blob, of what the commit changed; an empty blob is a file that is gone.
    changes: dict[str, str]


class Repository:
    """A git repository, or a bundle, that is asked for commits and blobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        batch = ["git", "-C", str(folder), "cat-file", "--batch"]
        self._batch = subprocess.Popen(batch, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._parsed: OrderedDict[str, Module | str] = OrderedDict()
        self._times: dict[str, int] = {}
        self._answers: dict[tuple[str, str], str | None] = {}

    def close(self) -> None:
        """End the process that reads blobs."""
        self._batch.communicate()

    def tip(self, branch: str) -> str:
        """Return the commit that a branch is at. Raises `HistoryError` if there is none of that name."""
        for name in (f"refs/heads/{branch}", f"refs/remotes/origin/{branch}", branch):
            found = _git(self.folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
            if found:
                return found.strip()
        msg = f"{self.folder} has no branch or commit {branch!r}: fetch it, or name another one"
        raise HistoryError(msg)

    def time_of(self, name: str) -> int:
        """Return when a tag or commit was committed, in seconds since 1970, 0 if there is none."""
        if name not in self._times:
            found = _git(self.folder, "log", "-1", "--format=%ct", f"{name}^{{commit}}", "--", check=False)
            self._times[name] = int(found or 0)
        return self._times[name]

    def commits(self, tip: str, paths: Sequence[str], start: int, end: int) -> Iterator[Commit]:
        """Yield the state at `start` as one commit, and what followed on the first-parent line until `end`.

        Args:
            tip: The last commit.
            paths: Files and folders that matter.
            start: Seconds since 1970. A branch that is younger starts with its first commit.
            end: Seconds since 1970; what is later is left out.

        """
        listed = _git(self.folder, "rev-list", "--first-parent", "--format=%H %ct", "--no-commit-header", tip)
        line: list[tuple[str, int]] = []
        for row in reversed(listed.splitlines()):
            name, _, stamp = row.partition(" ")
            line.append((name, max(int(stamp), line[-1][1] if line else 0)))
        line = [(name, time) for name, time in line if time < end]
        first = max((place for place, (_, time) in enumerate(line) if time <= start), default=0)
        if not line:
            msg = f"{self.folder} has no commit before the end of the period"
            raise HistoryError(msg)
        name, time = line[first]
        tree = _git(self.folder, "ls-tree", "-r", "-z", name, "--", *paths)
        rows = [row.partition("\t") for row in tree.split("\0") if row]
        yield Commit(name, max(time, start), {path: meta.split()[2] for meta, _, path in rows})
        later = line[first + 1 :]
        befores = [name, *(one for one, _ in later)]
        pairs = "".join(f"{one} {before}\n" for (one, _), before in zip(later, befores, strict=False))
        options = ("--stdin", "-r", "-z", "--no-renames", "--no-abbrev")
        raw = _git(self.folder, "diff-tree", *options, "--", *paths, given=pairs)
        changes = _changes(raw)
        for one, when in later:
            yield Commit(one, when, changes.get(one, {}))

    def blob(self, name: str) -> bytes:
        """Return the content of a blob."""
        assert self._batch.stdin is not None
        assert self._batch.stdout is not None
        self._batch.stdin.write(f"{name}\n".encode())
        self._batch.stdin.flush()
        head = self._batch.stdout.readline().split()
        if len(head) != 3:  # name, type, size; else `name missing`
            msg = f"{self.folder} lacks the object {name}: a partial clone does not do"
            raise HistoryError(msg)
        content = self._batch.stdout.read(int(head[2]))
        self._batch.stdout.read(1)
        return content

    def parse(self, name: str) -> Module:
        """Return the syntax tree of a blob. Raises `SourceError`."""
        found = self._parsed.get(name)
        if found is None:
            try:
                found = Module(ast.parse(self.blob(name)))
            except (SyntaxError, ValueError, RecursionError) as error:
                found = f"a source does not parse: {error}"
            self._parsed[name] = found
            if len(self._parsed) > _KEPT:
                self._parsed.popitem(last=False)
        self._parsed.move_to_end(name)
        if isinstance(found, str):
            raise SourceError(found)
        return found

    def digest(self, blob: str, site: str, tree: Tree) -> str | None:
        """Return the digest of a site in a blob."""
        if (blob, site) not in self._answers:
            self._answers[blob, site] = Tree.digest(tree, site)
        return self._answers[blob, site]


def _changes(raw: str) -> dict[str, dict[str, str]]:
    """Return the changes of each commit from what `git diff-tree --stdin -z` prints."""
    found: dict[str, dict[str, str]] = {}
    here: dict[str, str] = {}
    words = iter(raw.split("\0"))
    for word in words:
        if word.startswith(":"):
            blob = word.split()[3]
            here[next(words)] = "" if blob == _NONE else blob
        elif word:
            here = found.setdefault(word.strip(), {})
    return found


class CommitTree(Tree):
    """The sources of a commit. It notes which files were asked for."""

    def __init__(self, repository: Repository, files: dict[str, str]) -> None:
        super().__init__()
        self._repository, self._files = repository, files
        #: Path to blob, empty where there is no such file; folders end with a slash.
        self.asked: dict[str, str] = {}

    def holds(self, asked: dict[str, str]) -> bool:
        """Return whether the files that were asked for once are the same here."""
        return all(self._look(path) == blob for path, blob in asked.items())

    def _look(self, path: str) -> str:
        if path.endswith("/"):
            return "folder" if any(name.startswith(path) for name in self._files) else ""
        return self._files.get(path, "")

    def _ask(self, path: str) -> str:
        self.asked[path] = found = self._look(path)
        return found

    def _blob_of(self, module: str) -> str | None:
        """Return the blob of a module, empty for a namespace, `None` if there is no such module."""
        path = module.replace(".", "/")
        for name in (f"{path}/__init__.py", f"{path}.py"):
            blob = self._ask(name)
            if blob:
                return blob
        return "" if self._ask(f"{path}/") else None

    def source(self, module: str) -> str | None:
        """Return the source of a module, empty for a namespace."""
        blob = self._blob_of(module)
        return self._repository.blob(blob).decode("utf-8", "replace") if blob else blob

    def is_package(self, module: str) -> bool:
        """Return whether a module is a package."""
        path = module.replace(".", "/")
        return bool(self._ask(f"{path}/__init__.py") or self._ask(f"{path}/"))

    def read(self, path: str) -> str | None:
        """Return a file by its path beside the packages."""
        folder, _, name = path.partition("/../")
        asked = f"{folder.rpartition('/')[0]}/{name}".lstrip("/") if name else path
        blob = self._ask(asked)
        return self._repository.blob(blob).decode("utf-8", "replace") if blob else None

    def metadata_version(self, project: Project) -> str | None:
        """Return nothing: a checkout has no metadata."""
        del project
        return None

    def digest(self, site: str) -> str | None:
        """Return the digest of a site, computed once for each blob."""
        blob = self._blob_of(site.partition(":")[0])
        return self._repository.digest(blob, site, self) if blob else None

    def _parsed(self, module: str) -> Module:
        blob = self._blob_of(module)
        return self._repository.parse(blob) if blob else Module(ast.parse(""))


def _git(folder: Path, *command: str, given: str = "", check: bool = True) -> str:
    asked = ["git", "-C", str(folder), *command]
    done = subprocess.run(asked, input=given.encode(), capture_output=True, check=False)
    if done.returncode and check:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        msg = f"git {command[0]} in {folder}: {said[-1]}"
        raise HistoryError(msg)
    return done.stdout.decode("utf-8", "surrogateescape") if not done.returncode else ""
