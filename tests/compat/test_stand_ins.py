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


def test_the_device_is_the_cpu_has_plenty_of_memory_and_is_older_than_any() -> None:
    with cuda_on_cpu():
        here: Any = torch.cuda.current_device()
        assert here == torch.device("cpu")
        for device in ("cuda", "cuda:3", torch.device("cuda", 1), here):
            assert torch.ones(2, device=device).device.type == "cpu"
            assert torch.ones(2).to(device).device.type == "cpu"
        assert not torch.cuda.is_available()
        for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
            assert getattr(torch.cuda, name)() == 0
        for name in ("max_memory_allocated", "max_memory_reserved"):
            assert getattr(torch.cpu, name)() == 0
        facts = torch.cuda.get_device_properties(here)
        assert torch.cuda.mem_get_info() == torch.cuda.mem_get_info(here) == (facts.total_memory,) * 2
        assert facts.total_memory >= 2**40
        assert torch.cuda.get_device_capability() == (facts.major, facts.minor) < (1, 0)  # the first GPU's
        assert "CPU" in torch.cuda.get_device_name() == facts.name
        with pytest.raises(AttributeError, match="multi_processor_count"):
            facts.multi_processor_count  # noqa: B018
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch._C._host_emptyCache()


def test_streams_are_of_a_class_and_never_wait() -> None:
    with cuda_on_cpu():
        stream = torch.cuda.Stream(device="cuda")
        assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
        event = stream.record_event()
        assert isinstance(event, torch.cuda.Event)
        with torch.cuda.stream(stream), torch.cuda.device(0):
            stream.wait_stream(torch.cuda.default_stream())
            stream.wait_event(event)
            event.record()
            event.wait()
            event.synchronize()
        assert stream.query()
        assert event.query()
        torch.ones(1, device="cuda").record_stream(stream)
        assert not torch.cuda.is_current_stream_capturing()
        with pytest.raises(NotImplementedError, match="cannot tell how long"):
            torch.cuda.Event(enable_timing=True).elapsed_time(event)


def test_random_state_is_that_of_which_cuda_tensors_are_drawn() -> None:
    with cuda_on_cpu():
        kept = torch.cuda.get_rng_state()
        first = torch.rand(4, device="cuda")
        torch.cuda.set_rng_state(kept)
        assert torch.equal(first, torch.rand(4, device="cuda"))
        generators: Any = torch.cuda.default_generators
        for index in (0, "cuda", torch.cuda.current_device()):
            assert generators[index] is torch.default_generator
        torch.cuda.manual_seed(5)
        second = torch.rand(4, device="cuda")
        torch.cuda.manual_seed_all(5)
        assert torch.equal(second, torch.rand(4, device="cuda"))
        torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())


def test_what_is_to_be_pinned_or_moved_is_made_as_it_is() -> None:
    makes: tuple[Any, ...] = (
        lambda **how: torch.empty(2, **how),
        lambda **how: torch.full((2,), 3.0, **how),
        lambda **how: torch.arange(2, **how),
        lambda **how: torch.tensor([1, 2], **how),
        lambda **how: torch.empty_like(torch.ones(2), **how),
        lambda **how: torch.ones(2).new_empty(2, **how),
        lambda **how: torch.rand(2, **how),
    )
    with cuda_on_cpu():
        for make in makes:
            for where in ({}, {"device": "cpu"}, {"device": torch.device("cpu")}, {"device": "cuda"}):
                for pinned in (True, False):
                    made = make(pin_memory=pinned, **where)
                    assert (made.shape, made.device.type, made.is_pinned()) == ((2,), "cpu", False)
        tensor = torch.ones(2)
        assert tensor.cuda() is tensor.cuda(non_blocking=True).pin_memory() is tensor
        assert torch.nn.Linear(2, 2).cuda().weight.device.type == "cpu"


TYPES = {
    torch.float32: "FloatTensor", torch.float64: "DoubleTensor", torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor", torch.int64: "LongTensor", torch.int32: "IntTensor",
    torch.int16: "ShortTensor", torch.int8: "CharTensor", torch.uint8: "ByteTensor", torch.bool: "BoolTensor",
}  # fmt: skip


def test_a_tensor_says_and_takes_the_type_of_the_device() -> None:
    value = torch.ones(2)
    with cuda_on_cpu():
        for dtype, name in TYPES.items():
            kind = getattr(torch.cuda, name)
            for given in (f"torch.cuda.{name}", kind, dtype, f"torch.{name}"):
                for made in (
                    value.type(given),
                    value.type(dtype=given),
                    value.type(given, non_blocking=True),
                ):
                    assert (made.dtype, made.device.type) == (dtype, "cpu")
                    assert made.type() == f"torch.cuda.{name}"
                    assert isinstance(made, kind)  # as Megatron asks it
        layer = torch.nn.Linear(2, 2)
        assert layer.weight.type() == "torch.cuda.FloatTensor"
        assert layer.type("torch.cuda.DoubleTensor").weight.type() == "torch.cuda.DoubleTensor"
        assert torch.eye(2).to_sparse().type() == "torch.cuda.sparse.FloatTensor"
        with pytest.raises(ValueError, match=r"invalid type: .*NoTensor"):
            torch.ones(2).type("torch.cuda.NoTensor")
    assert value.type() == "torch.FloatTensor"


@pytest.mark.parametrize("how", ["method", "function", "gradients"])
def test_the_backward_pass_too_finds_its_device(how: str) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, value: Any) -> Any:
            return value * 2

        @staticmethod
        def backward(_ctx: Any, *gradients: Any) -> Any:
            return gradients[0] * torch.full((), 2.0, device="cuda")

    with cuda_on_cpu():
        value = torch.ones(2, device="cuda", requires_grad=True)
        total = Doubled.apply(value).sum()
        if how == "method":
            total.backward()
        elif how == "function":
            torch.autograd.backward(total)
        gradient: Any = torch.autograd.grad(total, value)[0] if how == "gradients" else value.grad
    assert gradient.tolist() == [2.0, 2.0]


def test_torchs_compiler_loads_while_it_lasts() -> None:
    code = "from overlay.compat.cuda_on_cpu import cuda_on_cpu\nwith cuda_on_cpu():\n    import torch._dynamo"
    subprocess.run([sys.executable, "-c", code], timeout=120, check=True)


# -- collectives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_what_asks_for_nccl_gets_gloo(nested: bool) -> None:
    with cuda_on_cpu(), cuda_on_cpu() if nested else torch.no_grad():
        given: Any = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore[attr-defined]
        dist.init_process_group("cpu:gloo,cuda:nccl", **given)
        try:
            group = dist.new_group([0], backend="nccl")
            subgroup, _ = dist.new_subgroups_by_enumeration([[0]], backend="nccl")
            assert {dist.get_backend(one) for one in (None, group, subgroup)} == {"gloo"}
            dist.barrier(group=group, device_ids=[0])
            value = torch.full((2,), 3.0, device="cuda")
            received = torch.zeros(2)
            sizes: Any = torch.tensor([2])  # which Megatron fetches from a device only
            dist.all_to_all_single(received, value, sizes, sizes, group=group)
            assert received.tolist() == [3.0, 3.0]
        finally:
            dist.destroy_process_group()


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
