"""Two ranks are compared once for each mesh that verl makes, and one without overlay stops the other."""

import importlib
import random
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest import mock

from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.patch import Contract
from overlay.testing import with_patches

#: The engine takes the function from another module.
_ENGINE, _WORKERS = "verl.workers.engine.fsdp.transformer_impl", "verl.workers.fsdp_workers"


def wrong(seed: str) -> str:
    """Return what is wrong with how ranks are compared, empty if nothing is."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    modules = [name for name in (_ENGINE, _WORKERS) if find_spec(name) is not None]
    return wrong_on_ranks(partial(_rank, seed, modules), *modules)


def _rank(seed: str, modules: list[str]) -> Iterator[str]:
    """Yield what is wrong on one of two ranks."""
    import torch

    import overlay
    from overlay.errors import AgreementError

    agree = overlay.agree
    with mock.patch.object(overlay, "agree", side_effect=agree) as compared:
        for name in modules:
            for fsdp_size, layout in ((-1, {"fsdp": 2}), (2, {"fsdp": 2}), (1, {"ddp": 2, "fsdp": 1})):
                compared.reset_mock()
                mesh = _mesh(name, fsdp_size)
                if dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True)) != layout:
                    yield f"{name}, fsdp_size={fsdp_size}: another mesh"
                if compared.call_count != 1:
                    yield f"{name}, fsdp_size={fsdp_size}: compared {compared.call_count} times"
    # Last, for the ranks count their comparisons alike no longer.
    name = random.Random(seed).choice(modules)
    if torch.distributed.get_rank() == 1:
        overlay.disable()
        _mesh(name, -1)
        return
    # As long as a job's ranks wait nobody has to here: the other never comes.
    with mock.patch.object(overlay, "agree", partial(agree, timeout=1.0)):
        try:
            _mesh(name, -1)
        except AgreementError:
            return
    yield f"{name}: goes on without the other rank"


def _mesh(name: str, fsdp_size: int) -> Any:
    """Return the mesh that a module of verl's makes of two ranks on a CPU."""
    module = importlib.import_module(name)
    where = importlib.import_module(module.create_device_mesh.__module__)
    # One asks for the name of the device as it makes the mesh, the other has asked before.
    with (
        mock.patch.object(where, "get_device_name", return_value="cpu"),
        mock.patch.object(where, "device_name", "cpu", create=True),
    ):
        return module.create_device_mesh(world_size=2, fsdp_size=fsdp_size)


CONTRACT = Contract(check=with_patches(wrong, "verl.agreement"), before=("verl.protocol",))
