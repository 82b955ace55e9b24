"""slime's releases by their source, for a `slime` that comes without `setup.py` and without metadata.

That is what Ray's `py_modules` and a copied folder are. The files that patches are about are compared, and
their arguments. A commit between two releases that differs from both in them is none, and has no version.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import ReadFile

#: The files that a release is told by: no two releases have the same.
MODULES = (
    "slime/utils/arguments.py",
    "slime/utils/seqlen_balancing.py",
    "slime/backends/megatron_utils/actor.py",
    "slime/backends/megatron_utils/data.py",
    "slime/backends/megatron_utils/loss.py",
    "slime/backends/megatron_utils/model.py",
)

#: What each release calls itself in its `setup.py`, by the fingerprint of its source.
RELEASES = {
    "b895b70a7e08": "0.0.1",  # v0.1.0
    "5af9ea450b17": "0.2.0",
    "c94693ee9867": "0.2.0.post1",
    "84454e41d529": "0.2.1",
    "9d73ee216f06": "0.2.2",
    "312a402e4370": "0.2.3",
    "3457232dac80": "0.2.3",  # v0.2.4
    "77e1bbdc479c": "0.3.0",
    "7aca912ec14e": "0.3.1",
}


def fingerprint(read: ReadFile) -> str:
    """Return the digest of the syntax trees of `MODULES`, empty if one of them is missing or no Python."""
    from overlay.source.digest import digest
    from overlay.source.unwarned import parse

    trees = []
    for name in MODULES:
        text = read(name)
        if text is None:
            return ""
        try:
            trees.append(parse(text, name))
        except (SyntaxError, ValueError):
            return ""
    return digest(trees)
