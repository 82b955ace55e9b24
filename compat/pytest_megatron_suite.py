"""What Megatron's own tests need without a GPU: `pytest -p overlay.compat.pytest_megatron_suite`.

It goes on top of the stand-in for CUDA (`forked_ranks`), and stands in for as little as it can:

- as many devices as there are ranks, which the tests choose theirs from;
- a device while tests are collected, and no longer: many are skipped where there is none, and run on the
  stand-in very well;
- a version of Transformer Engine older than any, where there is none: the fixtures ask for it;
- Megatron's own layers where a test asks for those of Transformer Engine and there is none. What such a test
  then shows is how Megatron distributes and schedules layers, and nothing about Transformer Engine;
- one group for each set of ranks: gloo connects all its ranks when a group is made, and Megatron makes dozens
  of groups of the same few sets of ranks for each test;
- no Triton, whose kernels are imported and never run;
- no download of test data;
- `typing.override`, which Megatron 0.19's tests take for granted, on Python 3.10 and 3.11.
"""

from __future__ import annotations

import contextlib
import os
import sys
import typing
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isfunction, signature
from typing import Any

import pytest
from packaging.version import Version

from overlay.compat.cuda_on_cpu import replaced
from overlay.compat.no_triton import no_triton

if not hasattr(typing, "override"):
    from typing_extensions import override

    # It marks a method for type checkers, and does nothing when it runs.
    vars(typing)["override"] = override


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Let the conftest import what imports Triton without a guard."""
    undo = contextlib.ExitStack()
    undo.enter_context(no_triton())
    early_config.add_cleanup(undo.close)


def pytest_configure(config: pytest.Config) -> None:
    """Put the stand-ins in place, and take them out when pytest ends."""
    import torch
    from megatron.core import parallel_state as state
    from megatron.core import utils

    undo = contextlib.ExitStack()
    undo.enter_context(replaced(torch.cuda, "device_count", lambda: int(os.environ.get("WORLD_SIZE", "1"))))
    # An older device, for which no kernel of this century is chosen.
    undo.enter_context(replaced(torch.cuda, "get_device_capability", lambda _device=None: (7, 0)))
    if not getattr(utils, "HAVE_TE", False):
        undo.enter_context(replaced(utils, "get_te_version", lambda: Version("0")))
        for owner, name, value in _own_layers():
            undo.enter_context(replaced(owner, name, value))
    groups = _Groups(state)
    undo.enter_context(replaced(state, "create_group", groups.create))
    undo.enter_context(
        replaced(torch.distributed, "destroy_process_group", groups.destroying(torch.distributed))
    )
    name = "tests.test_utils.python_scripts.download_unit_tests_dataset"
    with contextlib.suppress(ImportError):
        __import__(name)
        # What would be downloaded is for tests that are not run.
        undo.enter_context(replaced(sys.modules[name], "download_and_extract_asset", lambda *_, **__: None))
    config.add_cleanup(undo.close)


def _own_layers() -> Iterator[tuple[Any, str, object]]:
    """Yield what makes layers of Transformer Engine (module, name), and what makes Megatron's own instead."""
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.transformer.moe import moe_utils

    for name, make in list(vars(specs).items()):
        if isfunction(make) and "use_transformer_engine" in signature(make).parameters:
            yield specs, name, _own(make, make)
    if not hasattr(moe_utils, "te_general_gemm"):  # 0.16 asks for it whether or not it could be imported
        yield moe_utils, "te_general_gemm", None
    asked = specs.get_gpt_layer_with_transformer_engine_spec
    yield specs, asked.__name__, _own(asked, specs.get_gpt_layer_local_spec)


def _own(asked: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    """Return `make` for callers of `asked`, without what it does not know, and without Transformer Engine."""
    parameters, known = signature(asked), signature(make).parameters

    @wraps(asked)
    def made(*args: Any, **kwargs: Any) -> Any:
        given = {
            name: value for name, value in parameters.bind(*args, **kwargs).arguments.items() if name in known
        }
        if "use_transformer_engine" in known:
            given["use_transformer_engine"] = False
        return make(**given)

    return made


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let no test be skipped because there is no device."""
    import torch

    with replaced(torch.cuda, "is_available", lambda: True):
        return (yield)


class _Groups:
    """Process groups by their ranks, made once."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._create = state.create_group
        self._made: dict[tuple[Any, ...], Any] = {}

    def create(self, ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the group of these ranks, made by all that call this, as Megatron's own function does it."""
        if ranks is None:
            return self._create(ranks, *args, **kwargs)
        key = (tuple(ranks), bool(kwargs.get("use_local_synchronization")))
        if key not in self._made:
            self._made[key] = self._create(ranks, *args, **kwargs)
        return self._made[key]

    def destroying(self, dist: Any) -> Any:
        """Return `destroy_process_group`, which leaves alone the groups that are still to be given out."""
        destroy = dist.destroy_process_group

        def destroy_process_group(group: Any = None) -> None:
            if group is None or group is dist.group.WORLD:
                self._made.clear()
                destroy(group)
            elif not any(group is made for made in self._made.values()):
                destroy(group)

        return destroy_process_group
