"""What runs beneath the upstreams, and decides with them what a patch does."""

from __future__ import annotations

from overlay.patch import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import ReadFile


def _torch_version(read: ReadFile) -> str | None:
    """Read the literal of `version.py`, which tells the build as well (`2.13.0+cpu`)."""
    import ast

    try:
        body = ast.parse(read("torch/version.py") or "").body
    except SyntaxError:
        return None
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(name, ast.Name) and name.id == "__version__" for name in names):
                return str(node.value.value)
    return None


TORCH = Project(name="torch", distributions=("torch",), marker="torch", read_version=_torch_version)

#: Projects that no patch changes, and whose versions a lock keeps.
RECORDED = (TORCH,)
