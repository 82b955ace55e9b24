"""What runs beneath the upstreams, and decides with them what a patch does."""

from __future__ import annotations

from overlay.patch import Project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.patch import ReadFile


def literals(text: str | None) -> dict[str, str]:
    """Return the constants that a file gives to names, as text."""
    import ast

    from overlay.source.unwarned import parse

    found: dict[str, str] = {}
    try:
        body = parse(text or "", "<version>").body
    except (SyntaxError, ValueError):
        return found
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant):
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update((name.id, str(node.value.value)) for name in names if isinstance(name, ast.Name))
    return found


def _torch_version(read: ReadFile) -> str | None:
    """Read the literal of `version.py`, which tells the build as well (`2.13.0+cpu`)."""
    return literals(read("torch/version.py")).get("__version__")


def _ray_version(read: ReadFile) -> str | None:
    return literals(read("ray/_version.py")).get("version")


TORCH = Project(name="torch", distributions=("torch",), marker="torch", read_version=_torch_version)

RAY = Project(name="ray", distributions=("ray",), marker="ray.job_config", read_version=_ray_version)

#: Projects that no patch changes, and whose versions a lock keeps.
RECORDED = (TORCH,)

#: Projects that no patch changes, and that a person wants to see beside the upstreams.
SHOWN = (TORCH, RAY)

#: What brings a Megatron of its own choice, the outermost first. No patch changes it.
STACKS = tuple(
    Project(name=name, distributions=(name.lower(),), marker=marker)
    for name, marker in (
        ("NeMo-RL", "nemo_rl.models.megatron"),
        ("SkyRL", "skyrl.backends"),
        ("Primus", "primus.backends.megatron"),
        ("ROLL", "roll.pipeline"),
        ("AReaL", "areal.engine"),
        ("ms-swift", "swift.megatron"),
        ("Megatron-Bridge", "megatron.bridge"),
    )
)

#: What they bring, as people say it.
BENEATH = "Megatron"

#: By project, how its jobs are started: what stands behind `overlay run`. Of several that are installed the
#: first counts. A script that starts Ray hands Ray its environment, and Ray the job.
STARTED = {
    "slime": "bash scripts/run-qwen3-4B.sh",
    "miles": "python scripts/run_qwen3_4b.py",
    "verl": "python -m verl.trainer.main_ppo ...",
    "megatron-core": "torchrun --nproc-per-node 8 pretrain_gpt.py ...",
}
