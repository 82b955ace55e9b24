"""Show what `overlay audit` says of the verl and the Megatron that are installed for the demonstrations.

scripts/demo audit
"""

from __future__ import annotations

import argparse

from overlay.cli import main as overlay


def main(arguments: list[str] | None = None) -> int:
    """Print the screen. Its own exit code says that something is not patched, and is no failure here."""
    argparse.ArgumentParser(prog="scripts/demo audit", description=__doc__).parse_args(arguments)
    code = overlay(["audit"])
    return 0 if code == 1 else code
