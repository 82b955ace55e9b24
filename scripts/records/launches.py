"""Print which replaced modules upstreams' own scripts and docs run as `__main__`, and which they reach.

What a command names is found in the text of scripts and docs: `-m MODULE`, or the path of a file that is
there. What is imported is followed from there, and from what settings in them name, by the imports in the
source, late ones too, and by strings that name a module. A site that a tree does not have is left out.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from overlay.source.registry import load_patches
from sources import git_sources
from sources.git_sources import FetchError

#: Of each upstream, a revision of which its repository has scripts and docs as well as packages.
REVISIONS = {"megatron": "48406695", "slime": "v0.3.1", "verl": "1dda039b9"}
_TEXTS = {".sh", ".md", ".rst", ".yml", ".yaml", ".py", ".ipynb"}
_MODULE = re.compile(r"""(?:^|[\s"'])-m\s+([A-Za-z_][\w.]*\w)""")
_FILE = re.compile(r"[\w./-]*\w\.py\b")
#: A function or class in a setting, such as `--rollout-function-path package.module.function`.
_SETTING = re.compile(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){2,}")
#: By what a line with a file in it is a command.
_RUNS = re.compile(r"\b(python3?|torchrun|torch\.distributed\.run|deepspeed|accelerate launch)\b")


def modules(root: Path) -> dict[str, Path]:
    """Return the modules of a tree by their names as seen from its root."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def commands(root: Path, known: dict[str, Path]) -> tuple[Counter[str], set[str]]:
    """Return how often scripts and docs run each module of a tree, and the modules that settings name."""
    found: Counter[str] = Counter()
    settings: set[str] = set()
    for path in root.rglob("*"):
        if path.suffix not in _TEXTS or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
        if path.suffix != ".py":
            settings |= {word.rpartition(".")[0] for word in _SETTING.findall(text)}
        names = _MODULE.findall(text)
        found.update(
            name for one in names if (name := main if (main := f"{one}.__main__") in known else one) in known
        )
        for line in filter(_RUNS.search, text.splitlines()):
            files = [file.removeprefix("./").removesuffix(".py") for file in _FILE.findall(line)]
            found.update(name for file in files if (name := file.strip("/").replace("/", ".")) in known)
    return found, (settings | _parents(settings)) & known.keys()


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of a tree that a module imports, or names in a string, and their packages."""
    found = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value, node.value.rpartition(".")[0]}
    return (found | _parents(found)) & known.keys()


def _parents(names: set[str]) -> set[str]:
    return {".".join(one.split(".")[:end]) for one in names for end in range(1, one.count(".") + 1)}


def reached(roots: set[str], known: dict[str, Path]) -> set[str]:
    """Return all modules of a tree that are imported by what is run, and by what that imports."""
    found: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        new = imports(name, known[name], known) - found
        found |= new
        todo += new
    return found


def sites(known: dict[str, Path]) -> dict[str, set[str]]:
    """Return for each patch the modules of a tree in which it may replace something."""
    found = {name: set(patch.modules()) & known.keys() for name, patch in load_patches().items()}
    return {name: there for name, there in found.items() if there}


def table(project: str, revision: str, root: Path) -> list[str]:
    """Return the lines on one tree."""
    known = modules(root)
    run, settings = commands(root, known)
    imported = reached({*run, *settings}, known) | settings
    of_patches = sites(known)
    lines = [f"{project} {revision}: scripts and docs run {len(run)} modules, {run.total()} times"]
    for module, count in sorted(run.items()):
        mine = sorted(name for name, there in of_patches.items() if module in there)
        if mine:
            lines.append(f"  run as __main__ {count} times: {module}: {', '.join(mine)}")
    for name, there in sorted(of_patches.items()):
        lost = sorted(there - imported - set(run))
        if lost:
            lines.append(f"  neither run, nor named, nor imported by what is: {', '.join(lost)}: {name}")
    whole = [name for name, there in of_patches.items() if there <= imported]
    lines.append(
        f"  imported by what is run, or named, at all their sites: {len(whole)} of {len(of_patches)} patches"
    )
    return lines


def main(arguments: list[str]) -> int:
    """Print the table. Returns 1 if the sources of an upstream cannot be had."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args(arguments)
    for project, revision in REVISIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                git_sources.unpack(git_sources.archive(project, revision), Path(folder))
            except FetchError as error:
                print(error, file=sys.stderr)
                return 1
            print("\n".join(table(project, revision, Path(folder))))
    return 0
