"""The stand-in for CUDA: what it redirects, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from overlay.compat.cuda_on_cpu import GpuPresentError, cuda_on_cpu, replaced

if TYPE_CHECKING:
    from typing import Any

torch = pytest.importorskip("torch")


OWNERS = (torch.cuda, torch.cuda.random, torch.cpu, torch.distributed, torch.Tensor, torch.autograd, torch._C)


def state() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in OWNERS]


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


def test_streams_are_of_a_class_and_never_wait() -> None:
    with cuda_on_cpu():
        assert isinstance(torch.cuda.Stream, type)
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


def test_it_does_not_pretend_to_know_a_gpu_s_time() -> None:
    with cuda_on_cpu(), pytest.raises(NotImplementedError, match="cannot tell how long"):
        torch.cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event())


def test_random_state_is_that_of_which_cuda_tensors_are_drawn() -> None:
    with cuda_on_cpu():
        state = torch.cuda.get_rng_state()
        first = torch.rand(4, device="cuda")
        torch.cuda.set_rng_state(state)
        assert torch.equal(first, torch.rand(4, device="cuda"))
        for index in (0, "cuda", torch.cuda.current_device()):
            assert torch.cuda.default_generators[index] is torch.default_generator
        torch.cuda.manual_seed(5)
        second = torch.rand(4, device="cuda")
        torch.cuda.manual_seed_all(5)
        assert torch.equal(second, torch.rand(4, device="cuda"))
        torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())


def test_memory_of_the_device_reads_as_nothing() -> None:
    with cuda_on_cpu():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
            assert getattr(torch.cuda, name)() == 0


def test_there_is_plenty_of_memory() -> None:
    with cuda_on_cpu():
        for given in ((), (0,), (torch.cuda.current_device(),)):
            free, total = torch.cuda.mem_get_info(*given)
            assert free == total == torch.cuda.get_device_properties(*given).total_memory >= 2**40
        torch._C._host_emptyCache()


def test_the_device_says_that_it_is_none_and_older_than_any() -> None:
    with cuda_on_cpu():
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        assert torch.cuda.get_device_capability() == (device.major, device.minor) == (0, 0)
        assert torch.cuda.get_device_capability(0) < (1, 0)  # of the first that there was
        assert torch.cuda.get_device_name() == device.name
        assert "CPU" in device.name
        with pytest.raises(AttributeError, match="multi_processor_count"):
            device.multi_processor_count  # noqa: B018


FACTORIES = {
    "empty": lambda **how: torch.empty(2, **how),
    "zeros": lambda **how: torch.zeros(2, **how),
    "full": lambda **how: torch.full((2,), 3.0, **how),
    "arange": lambda **how: torch.arange(2, **how),
    "tensor": lambda **how: torch.tensor([1, 2], **how),
    "empty_like": lambda **how: torch.empty_like(torch.ones(2), **how),
    "new_empty": lambda **how: torch.ones(2).new_empty(2, **how),
    "rand": lambda **how: torch.rand(2, **how),
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize(
    "where", [{}, {"device": "cpu"}, {"device": torch.device("cpu")}, {"device": "cuda"}]
)
def test_what_is_to_be_pinned_is_made_as_it_is(name: str, where: dict[str, Any]) -> None:
    make = FACTORIES[name]
    with cuda_on_cpu():
        for pinned in (True, False, None) if name == "empty" else (True, False):
            made = make(pin_memory=pinned, **where)
            assert made.shape == (2,)
            assert made.device.type == "cpu"
            assert not made.is_pinned()


TYPES = {
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.int64: "LongTensor",
    torch.int32: "IntTensor",
    torch.int16: "ShortTensor",
    torch.int8: "CharTensor",
    torch.uint8: "ByteTensor",
    torch.bool: "BoolTensor",
}


@pytest.mark.parametrize("dtype", TYPES)
def test_a_tensor_says_and_takes_the_type_of_the_device(dtype: Any) -> None:
    name = f"torch.cuda.{TYPES[dtype]}"
    value = torch.ones(2)
    plain = value.type(f"torch.{TYPES[dtype]}")
    with cuda_on_cpu():
        for given in (name, getattr(torch.cuda, TYPES[dtype]), dtype, f"torch.{TYPES[dtype]}"):
            for made in (value.type(given), value.type(dtype=given), value.type(given, non_blocking=True)):
                assert made.dtype == plain.dtype == dtype
                assert made.device.type == "cpu"
                assert made.type() == name
        # As Megatron asks it.
        assert isinstance(plain, getattr(torch.cuda, TYPES[dtype]))
    assert plain.type() == f"torch.{TYPES[dtype]}"


def test_types_of_parameters_modules_and_what_lies_otherwise() -> None:
    with cuda_on_cpu():
        layer = torch.nn.Linear(2, 2)
        assert layer.weight.type() == "torch.cuda.FloatTensor"
        assert layer.type("torch.cuda.DoubleTensor").weight.type() == "torch.cuda.DoubleTensor"
        assert torch.eye(2).to_sparse().type() == "torch.cuda.sparse.FloatTensor"
        with pytest.raises(ValueError, match=r"invalid type: .*NoTensor"):
            torch.ones(2).type("torch.cuda.NoTensor")


def test_methods_of_a_tensor_that_mean_the_device() -> None:
    with cuda_on_cpu():
        tensor = torch.ones(2)
        assert tensor.cuda() is tensor
        assert tensor.cuda(non_blocking=True).pin_memory() is tensor
        assert torch.nn.Linear(2, 2).cuda().weight.device.type == "cpu"
        assert torch.cuda.FloatTensor([1.0]).device.type == "cpu"


@pytest.mark.parametrize("how", ["method", "function", "gradients"])
def test_the_backward_pass_too_finds_its_device(how: str) -> None:
    class Doubled(torch.autograd.Function):  # type: ignore[name-defined]
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
        gradient = torch.autograd.grad(total, value)[0] if how == "gradients" else value.grad
    assert gradient.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("inner", [contextlib.nullcontext, cuda_on_cpu])
def test_what_asks_for_nccl_gets_gloo(inner: Any) -> None:
    dist = torch.distributed
    with cuda_on_cpu(), inner():
        dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
        try:
            group = dist.new_group([0], backend="nccl")
            assert dist.get_backend(group) == dist.get_backend() == "gloo"
            subgroup, _ = dist.new_subgroups_by_enumeration([[0]], backend="nccl")
            assert dist.get_backend(subgroup) == "gloo"
            dist.barrier(group=group, device_ids=[0])
            value = torch.full((2,), 3.0, device="cuda")
            dist.all_reduce(value, op=dist.ReduceOp.AVG, group=group)
            assert value.tolist() == [3.0, 3.0]
            received = torch.zeros(2)
            sizes = torch.tensor([2])  # which Megatron fetches from a device only
            dist.all_to_all_single(received, value, sizes, sizes, group=group)
            assert received.tolist() == [3.0, 3.0]
            with pytest.raises(NotImplementedError, match="synchronously"):
                dist.all_reduce(value, op=dist.ReduceOp.AVG, group=group, async_op=True)
        finally:
            dist.destroy_process_group()


def test_it_refuses_where_there_is_a_gpu_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    before = state()
    with pytest.raises(GpuPresentError, match=r"hide 2 GPU\(s\).*force=True"), cuda_on_cpu():
        pass
    assert same(before, state())
    with cuda_on_cpu(force=True):
        assert not torch.cuda.is_available()
        with cuda_on_cpu():
            assert torch.zeros(1, device="cuda").device.type == "cpu"
    assert torch.cuda.is_available()
    assert same(before, state())


def test_torchs_compiler_loads_while_it_lasts() -> None:
    code = (
        "from overlay.compat.cuda_on_cpu import cuda_on_cpu\n"
        "with cuda_on_cpu():\n    import torch._dynamo; print('loaded')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "loaded\n", done.stderr
