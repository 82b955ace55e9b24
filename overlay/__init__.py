"""Version-gated runtime patches for an installed Megatron-Core, slime or verl.

    import overlay

    overlay.enable()

arms the patches that come with overlay. It imports nothing of an upstream, and no patch either before an
upstream is imported; each patch is decided on, and applied, when its modules are.
"""

from __future__ import annotations

from overlay._version import __version__
from overlay.errors import (
    AgreementError,
    LockError,
    OverlayError,
    PatchError,
    PinError,
    SelectionError,
    SourceError,
    WorkersError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from overlay.ledger import Status
    from overlay.runtime.engine import Engine
    from overlay.source.source import Place
    from overlay.verdict import Plan

__all__ = [
    "AgreementError",
    "LockError",
    "OverlayError",
    "PatchError",
    "PinError",
    "SelectionError",
    "SourceError",
    "WorkersError",
    "__version__",
    "agree",
    "disable",
    "effects",
    "enable",
    "metrics",
    "plan",
    "status",
]


def _here() -> Engine:
    # Imported late: `import overlay` must stay cheap for processes that never enable it.
    from overlay.runtime.process import here

    return here()


def enable(patches: str | Iterable[str] | None = None, strict: bool | None = None) -> None:
    """Arm the selected patches in this process, and apply those whose modules are imported already.

    Call it before the trainer imports Megatron, slime or verl. Calling it again changes nothing. If this
    process starts a Ray job later, its workers are armed alike, by the `env_vars` of the job's `runtime_env`.
    So are processes that `multiprocessing` starts from then on.

    Args:
        patches: What to select: `"all"`, `"none"`, ids, globs, and `-id` to drop, as a string with commas
            or as a list. Default: the environment variable `OVERLAY_PATCHES`, else all.
        strict: Whether a selected patch that cannot be applied is an error, raised by `enable()` or by the
            import of the module concerned, each time that it is tried. Default: `OVERLAY_STRICT`, else no.

    Raises:
        SelectionError: A term names no patch, or a setting has an unknown value. Nothing is armed.
        LockError: `OVERLAY_PIN` names a lock that cannot be read, or `OVERLAY_TRUST` what is no file of
            what was proven here. Nothing is armed.
        PinError: This process differs from the lock in `OVERLAY_PIN`. What can only be told when a target is
            imported is raised by that import, each time that it is tried.
        PatchError: In strict mode, if a module of a selected patch is there already and the patch cannot be
            applied to it. Everything is taken out again.
        WorkersError: In strict mode, if this process is the driver of a Ray job already, whose workers are
            not armed, or has a fork server that is not. Everything is taken out again.
        OverlayError: overlay is enabled with other settings already.
    """
    from overlay.launch.ray_jobs import RAY
    from overlay.launch.spawned import SPAWNED

    opened = not _here().enabled
    _here().arm(patches, strict)
    try:
        RAY.watch()
        SPAWNED.watch()
    except BaseException:
        if opened:
            disable()
        raise


def disable() -> None:
    """Take every patch out again, and restore the originals.

    Does nothing if overlay is not enabled. A site that somebody else replaced since is left alone, and the
    log says so.
    """
    from overlay.launch.ray_jobs import RAY
    from overlay.launch.spawned import SPAWNED

    RAY.leave()
    SPAWNED.leave()
    _here().disable()


def plan(patches: str | Iterable[str] | None = None, site: Place | Sequence[Place] | None = None) -> Plan:
    """Decide on every patch without importing or changing anything.

    Args:
        patches: As for `enable()`. Default: what is enabled, else `OVERLAY_PATCHES`, else all.
        site: A folder to look in (a site-packages, an unpacked wheel, a checkout) instead of what this
            interpreter would import, or several in the order of the path.

    Raises:
        SelectionError: A term names no patch.
        SourceError: `site` is nothing that modules can be found in.
    """
    return _here().plan(patches, site)


def status() -> Status:
    """Return what happened in this process so far: verdicts, and the state of each site."""
    return _here().status()


def effects() -> dict[str, dict[str, int | float]]:
    """Return what the patches changed in this process so far: by patch, its figures by their names.

    Patches that never were in place have none, and one that had nothing to do has 0 for `changed`. What each
    figure is, its unit, and how those of several processes become one, is in `status()`.
    """
    found = {patch.patch: patch.effect for patch in _here().status(looks=False).patches}
    return {name: dict(effect.values) for name, effect in found.items() if effect is not None}


def metrics(*, reached: bool = False) -> dict[str, int | float]:
    """Return the same as one flat dict for wandb or tensorboard: `overlay/PATCH/FIGURE`.

    Args:
        reached: Leave out patches that were not reached so far.

    """
    return {
        f"overlay/{patch}/{figure}": value
        for patch, figures in effects().items()
        if not reached or figures.get("calls") or figures.get("changed")
        for figure, value in figures.items()
    }


def agree(group: Any = None, timeout: float | None = None) -> None:
    """Compare over all ranks of a process group what is in force.

    That is: the code of overlay and of packs, each patch that applies with the source of each site, which
    patches are in place, and strict mode. What some ranks have not imported yet is no difference.

    Every rank of the group calls it, as a collective. The first of them logs that they agree. It goes through
    the store of the process group and works with any backend that has one. With Megatron it runs by itself
    when the model parallel state has been initialised.

    Args:
        group: A process group of `torch.distributed`. Default: all ranks.
        timeout: Seconds to wait for a rank that does not call it. Default: a little less than the timeout of
            the group, so that such a rank is named before the group's next collective fails. A warning
            names it after a minute, or half that time.

    Raises:
        AgreementError: On every rank that called it, if ranks differ or some did not call it in time. The
            message says which ranks, which patch, and on which version and file.
        OverlayError: There is no process group, or its backend keeps no store.
    """
    from overlay.source.registry import COMPAT, import_module

    given: Any = timeout
    if given is not None and not (isinstance(given, (int, float)) and given > 0):
        raise OverlayError(f"timeout={timeout!r} is no number of seconds above 0: leave it out, or give one")
    import_module(f"{COMPAT}.agreement").agree(group, timeout, _here().statement())
