"""Print the rooms of the house: what each answers, its files, and where its arrows point.

An arrow is an import, also a late one or one for types alone. A floor is the longest way down.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "overlay"
#: What lies in `overlay/` itself, which users and authors of patches import, by the question it answers.
FACE = {
    "(errors)": "What can go wrong, and which version is this?",
    "(words)": "What do patch, contract, defect, verdict, effect, ledger and log mean?",
    "(doors)": "What do users, trainers and tests call?",
}
PLACES = {"errors": "(errors)", "_version": "(errors)"} | dict.fromkeys(
    ("patch", "defect", "verdict", "effect", "ledger", "log"), "(words)"
)

#: Walks through the engine, each as a program that imports what there is to read.
WALKS = {
    "a selection, from the environment to a patched call": """
import overlay
overlay.enable()
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions
get_seqlen_balanced_partitions([3, 1, 2, 4], 2, False)
overlay.effects()
""",
    "a patch, from its file to the row of the report": """
import os
from overlay.cli import main
main(["report", os.environ["OVERLAY_LEDGER_DIR"]])
""",
    "how a source is recognised": """
import overlay
overlay.plan()
""",
}
#: The walk that goes on from the one before it, whose ledger it reads.
FURTHER = "a patch, from its file to the row of the report"
_OPENED = """
import sys
for name, module in [*sys.modules.items()]:
    if name.split(".")[0] == "overlay" and not name.startswith(("overlay.patches", "overlay.compat")):
        print(module.__file__)
"""


def arrows() -> dict[str, set[str]]:
    """Return for each module of the engine those that it imports. A package stands for its `__init__`."""
    graph = grimp.build_graph(ENGINE.name, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def room_of(module: str) -> str:
    """Return the room of a module of the engine."""
    _, *rest = module.split(".")
    if rest and (ENGINE / rest[0]).is_dir():
        return rest[0]
    return PLACES.get(rest[0] if rest else "", "(doors)")


def between_rooms(modules: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return for each room those that its modules import from."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, others in modules.items():
        found[room_of(name)] |= {room_of(other) for other in others} - {room_of(name)}
    return found


def question(room: str) -> str:
    """Return what a room answers: the first sentence of its `__init__`."""
    if room in FACE:
        return FACE[room]
    tree = ast.parse((ENGINE / room / "__init__.py").read_text(encoding="utf-8"))
    return " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())


def picture() -> str:
    """Return the rooms from the roof to the ground. Raises `CycleError` if there is no ground."""
    modules = arrows()
    rooms = between_rooms(modules)
    floors: dict[str, int] = {}
    for room in TopologicalSorter(rooms).static_order():
        floors[room] = 1 + max((floors[other] for other in rooms[room]), default=-1)
    # Their `__init__` says what is in them, and does nothing.
    folders = {name.rpartition(".")[0] for name in modules} - {ENGINE.name}
    lines = []
    for room in sorted(rooms, key=lambda room: (-floors[room], room)):
        files = [name for name in modules if room_of(name) == room and name not in folders]
        lines.append(f"{floors[room]:2}  {room}, {len(files)} files: {question(room)}")
        lines.append(f"    -> {', '.join(sorted(rooms[room])) or 'nothing'}")
    return "\n".join(lines)


def walks() -> str:
    """Return how many files of the engine, and how many lines, each of `WALKS` goes through."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"OVERLAY_PATCHES": "verl.fast-partitioner", "OVERLAY_LEDGER_DIR": folder}
        opened: set[str] = set()
        for walk, code in WALKS.items():
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code + _OPENED],
                env=environ, cwd=folder, capture_output=True, text=True, check=True,
            )  # fmt: skip
            names = {line for line in done.stdout.splitlines() if line.startswith(str(ENGINE))}
            opened = names | (opened if walk == FURTHER else set())
            read = sum(len(Path(name).read_text(encoding="utf-8").splitlines()) for name in opened)
            lines.append(f"{walk:60} {len(opened):3} files {read:6,} lines")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Print the picture, or how far three walks through it are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--walks", action="store_true", help="the files that three walks go through instead")
    print(walks() if parser.parse_args(arguments).walks else picture())
    return 0
