"""What the loss asks of a device while a CUDA graph is captured: no copy to or from the host, and no look.

Tensors of the device `meta` take the place of CUDA's: they have no numbers, so that a look at one raises.
"""

from __future__ import annotations

from typing import Any

import pytest

from overlay.patches._packed_loss import cuda_graph, response_rows, vocab_parallel
from overlay.patches._packed_loss.row_blocks import Rows

torch: Any = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402 -- after the check that torch is there
from torch.utils._pytree import tree_leaves  # noqa: E402

SPANS = [(0, 3), (4, 7), (8, 8)]


class Across(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Remembers the operations that have to do with the host."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
        if any(tensor.device.type == "cpu" for tensor in tensors):
            self.seen.append(str(func))
        return out


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it look as if a graph were being cuda_graph."""
    for module in (cuda_graph, vocab_parallel):
        monkeypatch.setattr(module, "capturing", lambda _device: True)


def asked(*, entropy: bool, gradient: bool = True) -> list[str]:
    """Return the operations across devices of one forward and backward."""
    leaf = torch.empty(1, 9, 50, device="meta", requires_grad=True)
    targets = torch.empty(6, dtype=torch.long, device="meta")
    rows = Rows(SPANS, temperature=0.7, with_entropy=entropy, entropy_gradient=gradient)
    across = Across()
    with across:
        log_prob, found = vocab_parallel.make_log_prob_entropy()(leaf * 1, targets, rows)
        (log_prob.sum() + found.sum()).backward()
    return across.seen


@pytest.mark.usefixtures("capture")
@pytest.mark.parametrize("entropy", [False, True])
def test_a_captured_loss_keeps_to_the_device(entropy: bool) -> None:
    # With a coefficient of zero the gradient of the entropy would be looked at.
    assert not asked(entropy=entropy, gradient=False)


def test_without_a_capture_rows_are_counted_on_the_host() -> None:
    """So that the test above can see a copy, and a look."""
    assert "aten._to_copy.default" in asked(entropy=True)
    with pytest.raises(RuntimeError, match="meta"):
        asked(entropy=True, gradient=False)


@pytest.mark.usefixtures("capture")
def test_what_zigzag_ranks_put_together_keeps_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.nn.functional as dist

    class Module:
        class mpu:  # noqa: N801 -- as slime's module has it
            @staticmethod
            def get_context_parallel_group() -> None:
                return None

        @staticmethod
        def slice_log_prob_with_cp(values: Any, _total: int, _response: int) -> Any:
            return values

    monkeypatch.setattr(dist, "all_reduce", lambda values, group=None: values)
    values = [torch.empty(6, device="meta", requires_grad=True)]
    with Across() as across:
        response_rows.spread_over_zigzag(values, [[(0, 3)], [(4, 7)]], 0, Module, [4, 4], [3, 3])
    assert not across.seen


def test_numbers_are_the_same_on_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    here = torch.device("cpu")
    copied = cuda_graph.numbers(SPANS, here)
    monkeypatch.setattr(cuda_graph, "capturing", lambda _device: True)
    made = cuda_graph.numbers(iter(SPANS), here)
    assert copied.tolist() == made.tolist() == [0, 1, 2, 4, 5, 6]
    assert made.dtype == copied.dtype == torch.long
    assert cuda_graph.numbers([], here).tolist() == []


def test_who_captures_is_asked_of_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not cuda_graph.capturing(torch.device("cpu"))
    assert cuda_graph.capturing(torch.device("cuda", 0))
