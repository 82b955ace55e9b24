"""What stands in for CUDA, for NCCL's collectives, for Triton and for a device in Megatron's own tests."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist

from overlay.compat import cpu_collectives, pytest_megatron_suite
from overlay.compat.cuda_on_cpu import GpuPresentError, cuda_on_cpu, replaced
from overlay.compat.names import Finder
from overlay.compat.no_triton import no_triton

OWNERS = (torch.cuda, torch.cuda.random, torch.cpu, torch.distributed, torch.Tensor, torch.autograd, torch._C)


def state() -> list[list[tuple[str, int]]]:
    return [sorted((name, id(value)) for name, value in vars(owner).items()) for owner in OWNERS]


# -- CUDA --------------------------------------------------------------------------------------------------


def test_everything_is_put_back_also_after_an_error() -> None:
    before = state()
    with contextlib.suppress(KeyError), cuda_on_cpu():
        assert state() != before
        with cuda_on_cpu():
            pass
        assert torch.zeros(1, device="cuda").device.type == "cpu"
        raise KeyError
    assert state() == before
    owner = SimpleNamespace(there=1)
    with replaced(owner, "there", 2), replaced(owner, "absent", 3):
        assert (owner.there, owner.absent) == (2, 3)
    assert vars(owner) == {"there": 1}


def test_it_refuses_where_there_is_a_gpu_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    before = state()
    with pytest.raises(GpuPresentError, match=r"hide 2 GPU\(s\).*force=True"), cuda_on_cpu():
        pass
    assert state() == before
    with cuda_on_cpu(force=True):
        assert not torch.cuda.is_available()
    assert state() == before


def test_what_is_asked_of_the_device_the_cpu_does() -> None:
    with cuda_on_cpu():
        here: Any = torch.cuda.current_device()
        for device in ("cuda", "cuda:3", torch.device("cuda", 1), here):
            made = torch.ones(2, device=device, pin_memory=True)
            assert (made.device.type, made.to(device).device.type, made.is_pinned()) == ("cpu", "cpu", False)
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
        # More memory than any, and older than any: nothing is cleared, and no path for a newer one is taken.
        assert min(torch.cuda.mem_get_info()) >= 2**40
        assert torch.cuda.get_device_capability() < (1, 0)
        kept = torch.cuda.get_rng_state()
        first = torch.rand(4, device="cuda")
        torch.cuda.set_rng_state(kept)
        assert torch.equal(first, torch.rand(4, device="cuda"))
        with pytest.raises(NotImplementedError, match="cannot tell how long"):
            torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event())
        assert torch.ones(2).type("torch.cuda.HalfTensor").type() == "torch.cuda.HalfTensor"
    assert torch.ones(2).type() == "torch.FloatTensor"


def test_torchs_compiler_loads_while_it_lasts() -> None:
    code = "from overlay.compat.cuda_on_cpu import cuda_on_cpu\nwith cuda_on_cpu():\n    import torch._dynamo"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)


# -- collectives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "factor"), [("AVG", 1), ("SUM", 3), ("MAX", 1)])
def test_an_average_is_a_sum_that_is_divided(monkeypatch: pytest.MonkeyPatch, op: str, factor: int) -> None:
    """Among three ranks that hold the same, with a stand-in for gloo below."""

    def gloo(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:
        assert op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX)
        if op == dist.ReduceOp.SUM:
            tensor.mul_(3)

    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 3)
    monkeypatch.setattr(dist, "all_reduce", gloo)
    found: Any = next(value for _, name, value in cpu_collectives.replacements() if name == "all_reduce")
    values = torch.randn(5, dtype=torch.float64)
    reduced = values.clone()
    found(reduced, op=getattr(dist.ReduceOp, op))
    torch.testing.assert_close(reduced, factor * values)
    with pytest.raises(NotImplementedError, match="synchronously"):
        found(values, op=dist.ReduceOp.AVG, async_op=True)


# -- Triton, and Megatron's own tests ----------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_triton_is_there_as_long_as_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with no_triton():
        import triton
        import triton.language as tl

        @triton.autotune(configs=[triton.Config({"size": 1})], key=["size"])  # type: ignore[untyped-decorator]
        @triton.jit  # type: ignore[untyped-decorator]
        def tuned(size: tl.constexpr = 3) -> Any:
            return size

        assert tuned() == 3
        assert not hasattr(triton, "__nothing__")
        with no_triton():  # which is there now
            pass
        assert sys.modules["triton"] is triton
    assert not {"triton", "triton.language"} & sys.modules.keys()
    real = ModuleType("triton")
    monkeypatch.setitem(sys.modules, "triton", real)
    with no_triton():
        assert sys.modules["triton"] is real
    assert sys.modules["triton"] is real


def test_what_is_found_is_of_the_packages_alone() -> None:
    finder = Finder("web", "verl.utils.vllm")
    found = ["web", "web.a.b", "verl.utils.vllm", "verl.utils.vllm.patch"]
    others = ["website", "verl", "verl.utils", "verl.utils.vllm_omni", "a.web"]
    assert [name for name in (*found, *others) if finder.find_spec(name) is not None] == found


def test_groups_of_megatrons_tests_are_made_once_and_go_with_the_world() -> None:
    made: list[Any] = []
    destroyed: list[Any] = []

    def create_group(ranks: Any = None, **kwargs: Any) -> Any:
        made.append(ranks)
        return SimpleNamespace(ranks=ranks)

    world = SimpleNamespace(ranks=None)
    torch_dist = SimpleNamespace(
        group=SimpleNamespace(WORLD=world), destroy_process_group=lambda group=None: destroyed.append(group)
    )
    ours = pytest_megatron_suite._Groups(SimpleNamespace(create_group=create_group))
    destroy = ours.destroying(torch_dist)
    first = ours.create([0, 1], group_desc="one")
    assert ours.create([0, 1], group_desc="another") is first
    assert ours.create([0, 2]) is not first
    # Other ranks take part in making it.
    assert ours.create([0, 1], use_local_synchronization=True) is not first
    assert ours.create(None) is not ours.create(None)
    assert len(made) == 5
    # What is given out again is not destroyed before the world.
    other = SimpleNamespace(ranks=[5])
    for group in (first, other, None, world):
        destroy(group)
    assert destroyed == [other, None, world]
    assert ours.create([0, 1]) is not first
