"""Whether a storage may be freed, asked with a stand-in for verl's own answer."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from overlay.patches.verl.offload_shared_storage import make_can_resize


@pytest.mark.parametrize("theirs", [True, False])
def test_what_is_on_the_cpu_already_is_never_freed(theirs: bool) -> None:
    can_resize = make_can_resize(lambda tensor: theirs, ModuleType("megatron_utils"))
    alone: Any = torch.zeros(3)
    assert not can_resize(alone)


def test_what_verl_would_not_free_is_not_freed() -> None:
    # Of a device without memory: what counts is that it is not the CPU's.
    can_resize = make_can_resize(lambda tensor: False, ModuleType("megatron_utils"))
    alone: Any = torch.zeros(3, device="meta")
    assert not can_resize(alone)


def test_what_is_alone_is_freed() -> None:
    can_resize = make_can_resize(lambda tensor: True, ModuleType("megatron_utils"))
    alone: Any = torch.zeros(3, device="meta")
    assert can_resize(alone)
