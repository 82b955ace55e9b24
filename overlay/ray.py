"""Ray: a `runtime_env` that arms every worker of a job at its start.

It sets environment variables, which the start-up file in each worker reads. The single slot of
`worker_process_setup_hook` stays free for others. Ray merges the variables of a job with those of a task or
an actor, so a `runtime_env` further down keeps them. A driver that is enabled before it calls `ray.init` does
the same by itself.
"""

from __future__ import annotations

from overlay.errors import SelectionError
from overlay.launch.workers import by_hand, variables

__all__ = ["runtime_env", "variables"]
from collections.abc import Mapping
from typing import Any


def runtime_env(existing: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a `runtime_env` that arms, merged into an existing one, which is not changed.

    The settings are those of this process: its environment, and what `enable()` was given. The `env_vars` of
    `existing` are kept. In the driver of a submitted job, variables that it was submitted with are left out,
    as Ray takes none twice; `OVERLAY_VOUCHED` then says that the call was made.
    A relative path in `OVERLAY_PIN` or `OVERLAY_TRUST` becomes an absolute one, which every node must have.

    Raises:
        SelectionError: `existing` or its `env_vars` is no dictionary, or a setting cannot be understood.
    """
    if not isinstance(existing, (dict, type(None))):
        raise SelectionError(f"a runtime_env is a dictionary, got {existing!r}")
    made: dict[str, Any] = dict(existing or {})
    given = made.get("env_vars")
    if not isinstance(given, (dict, type(None))):
        raise SelectionError(f"the env_vars of a runtime_env are a dictionary, got {given!r}")
    made["env_vars"] = {**by_hand(), **(given or {})}
    return made
