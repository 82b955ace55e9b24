"""The stand-in for CUDA: what it redirects, and that nothing of it stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from overlay.compat.cuda_on_cpu import cuda_on_cpu, replaced

if TYPE_CHECKING:
    from typing import Any

torch = pytest.importorskip("torch")


def state() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in (torch.cuda, torch.cpu, torch.distributed, torch.Tensor)]


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    return all(
        a.keys() == b.keys() and all(a[name] is b[name] for name in a)
        for a, b in zip(one, other, strict=True)
    )


def test_everything_is_put_back() -> None:
    before = state()
    with cuda_on_cpu():
        assert not same(before, state())
        with cuda_on_cpu():
            pass
        assert torch.zeros(1, device="cuda").device.type == "cpu"
    assert same(before, state())


def test_everything_is_put_back_after_an_error() -> None:
    before = state()
    with pytest.raises(KeyError), cuda_on_cpu():
        raise KeyError
    assert same(before, state())


def test_what_is_asked_of_cuda_lives_on_the_cpu() -> None:
    with cuda_on_cpu():
        assert torch.cuda.current_device() == torch.device("cpu")
        for device in ("cuda", "cuda:3", torch.device("cuda", 1), torch.cuda.current_device()):
            assert torch.ones(2, device=device).device.type == "cpu"
            assert torch.ones(2).to(device).device.type == "cpu"
        torch.cuda.synchronize()
        assert not torch.cuda.is_available()
        assert torch.cpu.max_memory_allocated() == torch.cpu.max_memory_reserved() == 0


def test_a_replaced_attribute_is_restored_or_removed() -> None:
    owner = SimpleNamespace(there=1)
    with replaced(owner, "there", 2), replaced(owner, "absent", 3):
        assert (owner.there, owner.absent) == (2, 3)
    assert vars(owner) == {"there": 1}
