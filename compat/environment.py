"""What runs beneath the upstreams, and decides with them what a patch does."""

from __future__ import annotations

from overlay.patch import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import ReadFile


def _literal(text: str | None, wanted: str) -> str | None:
    """Return the constant that a file gives a name, as text, `None` if there is none."""
    import ast

    try:
        body = ast.parse(text or "").body
    except (SyntaxError, ValueError):
        return None
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(name, ast.Name) and name.id == wanted for name in names):
                return str(node.value.value)
    return None


def _torch_version(read: ReadFile) -> str | None:
    """Read the literal of `version.py`, which tells the build as well (`2.13.0+cpu`)."""
    return _literal(read("torch/version.py"), "__version__")


def _ray_version(read: ReadFile) -> str | None:
    return _literal(read("ray/_version.py"), "version")


TORCH = Project(name="torch", distributions=("torch",), marker="torch", read_version=_torch_version)

RAY = Project(name="ray", distributions=("ray",), marker="ray.job_config", read_version=_ray_version)

#: Projects that no patch changes, and whose versions a lock keeps.
RECORDED = (TORCH,)

#: Projects that no patch changes, and that a person wants to see beside the upstreams.
SHOWN = (TORCH, RAY)

#: By project, how its jobs are started: what stands behind `overlay run`. Of several that are installed the
#: first counts. A script that starts Ray hands Ray its environment, and Ray the job.
STARTED = {
    "slime": "bash scripts/run-qwen3-4B.sh",
    "miles": "python scripts/run_qwen3_4b.py",
    "verl": "python -m verl.trainer.main_ppo ...",
    "megatron-core": "torchrun --nproc-per-node 8 pretrain_gpt.py ...",
}
