"""Print again what the documents quote, so that no figure in them is typed by hand.

A quoted output stands between two marks, the first of which names the command:

    <!-- printed by: ./scripts/demo -->
    ...
    <!-- end of print -->

    ./scripts/matrix figures            # run every command and write its output into the documents
    ./scripts/matrix figures README.md  # only those of some documents
    ./scripts/matrix figures docs/trust.md --only "mutants --recorded"
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(
    r"(?P<head><!-- printed by: (?P<command>[^\n]+?) -->\n)(?P<body>.*?)(?P<tail><!-- end of print -->)",
    re.DOTALL,
)


def documents() -> list[Path]:
    """Return the documents that may quote something."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(text: str) -> list[str]:
    """Return the commands whose output a text quotes."""
    return [match["command"] for match in MARKED.finditer(text)]


def quoted(command: str, output: str) -> str:
    """Return an output as it stands in a document."""
    body = "\n".join(line.rstrip() for line in output.strip("\n").splitlines())
    return f"```text\n$ {command}\n{body}\n```\n"


def rewrite(path: Path, printed: dict[str, str], words: str = "") -> None:
    """Write the outputs of the commands with some words into one document, each command run once."""

    def fill(match: re.Match[str]) -> str:
        command = match["command"]
        if words not in command:
            return match[0]
        if command not in printed:
            print(f"running {command}", file=sys.stderr, flush=True)
            done = subprocess.run(
                shlex.split(command), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
            )
            printed[command] = done.stdout
        return match["head"] + quoted(command, printed[command]) + match["tail"]

    path.write_text(MARKED.sub(fill, path.read_text()))


def main(arguments: list[str]) -> int:
    """Rewrite the named documents, or all."""
    parser = argparse.ArgumentParser(description="Print again what the documents quote.")
    parser.add_argument("documents", nargs="*", metavar="FILE", help="such as README.md (default: all)")
    parser.add_argument("--only", default="", metavar="WORDS", help="those whose command has these words")
    options = parser.parse_args(arguments)
    printed: dict[str, str] = {}
    for path in [ROOT / name for name in options.documents] or documents():
        rewrite(path, printed, options.only)
    return 0
