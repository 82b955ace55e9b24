"""The replaced function on a module of the tests' own, which lays tokens out as slime does and no more.

Against real releases: tests/real/test_loss_memory_ranks.py.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from overlay.patches._packed_loss.attachment import true_arguments
from overlay.patches.slime import loss_memory as fix

torch: Any = pytest.importorskip("torch")


TOTALS, RESPONSES = [9, 4, 6], [4, 0, 5]
VOCABULARY = 11


def get_responses(
    logits: Any, *, args: Any, unconcat_tokens: Any, total_lengths: Any, response_lengths: Any, **more: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield packed responses, temperature and a surplus of tokens of an empty response included."""
    assert logits.dtype == torch.float32
    logits, end = logits.squeeze(0) / args.rollout_temperature, 0
    for tokens, total, count in zip(unconcat_tokens, total_lengths, response_lengths, strict=True):
        end += total
        yield logits[end - count - 1 : end - 1], tokens[-count:]


@pytest.fixture
def module() -> Any:
    made: Any = ModuleType("slime.backends.megatron_utils.loss")
    made.get_responses = get_responses
    group = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    made.mpu = SimpleNamespace(
        get_context_parallel_world_size=lambda: made.ranks, get_tensor_model_parallel_group=lambda: group
    )
    made.ranks = 1
    return made


def arguments(**changed: Any) -> Namespace:
    known = {
        "rollout_temperature": 0.8,
        "entropy_coef": 0.0,
        "loss_type": "policy_loss",
        "allgather_cp": False,
        "rollout_top_p": 1.0,
    }
    return Namespace(**{**known, **changed})


def batch(**changed: Any) -> dict[str, Any]:
    tokens = [torch.randint(VOCABULARY, (total,)) for total in TOTALS]
    given = {"unconcat_tokens": tokens, "total_lengths": TOTALS, "response_lengths": RESPONSES}
    return {"args": arguments(), "with_entropy": True, **given, **changed}


def logits() -> Any:
    return torch.randn(1, sum(TOTALS) + 2, VOCABULARY).requires_grad_()


@pytest.mark.parametrize("changed", [{}, {"entropy_coef": 0.1}, {"loss_type": "custom_loss"}])
def test_the_entropy_is_part_of_the_graph_whatever_a_loss_does_with_it(module: Any, changed: Any) -> None:
    """With a coefficient of zero too: a loss may have another use for it, and its gradient is right."""
    function = fix.make_lists(lambda: None, module)
    x = logits()
    found = function(x, **batch(args=arguments(**changed)))
    assert all(value.requires_grad for values in found.values() for value in values)
    (gradient,) = torch.autograd.grad(sum(value.sum() for value in found["entropy"]), x)
    leaf = x.detach().double().requires_grad_()
    logs = torch.log_softmax(leaf[0] / 0.8, -1)
    rows = torch.cat([logs[4:8], logs[13:18]])
    (expected,) = torch.autograd.grad(-(rows.exp() * rows).sum(), leaf)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-6)


def test_float32_only(module: Any) -> None:
    function = fix.make_lists(lambda: None, module)
    for wrong in (logits().double(), logits().bfloat16()):
        with pytest.raises(AssertionError, match="float32"):
            function(wrong, **batch())
    with pytest.raises(AssertionError, match="non_loss_data"):
        function(logits(), **batch(non_loss_data=False))


def test_values_of_a_critic_are_those_of_slime_but_for_allgather_of_padded_sequences(module: Any) -> None:
    seen: list[dict[str, Any]] = []
    function = fix.make_values(lambda given, **more: seen.append({"logits": given, **more}), module)
    for ranks, settings in (
        (2, {"allgather_cp": True, "qkv_format": "thd"}),
        (2, {"qkv_format": "bshd"}),
        (1, {}),
    ):
        module.ranks, given = ranks, batch(args=arguments(**settings), max_seq_lens=[4])
        function("logits", **given)
        assert seen.pop() == {"logits": "logits", **given}
    module.ranks = 2
    for refusing in (function, fix.make_pair(lambda: None, module)):
        with pytest.raises(ValueError, match="qkv_format is 'bshd'"):
            refusing(logits(), **batch(args=arguments(allgather_cp=True, qkv_format="bshd")))


def test_rows_and_tokens_that_do_not_fit_are_an_error(module: Any) -> None:
    module.get_responses = lambda rows, **more: (
        (part[:-1], tokens) for part, tokens in get_responses(rows, **more)
    )
    with pytest.raises(ValueError, match="4 response tokens, and 3 rows"):
        fix.make_lists(lambda: None, module)(logits(), **batch())


def test_releases_differ_in_what_they_return_and_take(module: Any) -> None:
    x, given = logits(), batch()
    padded = fix.make_lists(lambda: None, module)
    assert set(padded(x, max_seq_lens=None, **given)) == {"log_probs", "entropy"}
    empty, lists = fix.make_pair(lambda: None, module)(x, max_seq_lens=None, **given)
    assert empty.shape == (0,)
    assert set(lists) == {"log_probs", "entropy"}
    asked: list[dict[str, Any]] = []

    def original(_logits: Any, **more: Any) -> str:
        asked.append(more)
        return "upstream's"

    with_sets = fix.make_pair(original, module)
    assert set(with_sets(x, **given)[1]) == {"log_probs", "entropy"}
    assert not asked
    sets = {"top_p_token_ids": [[1]], "top_p_token_offsets": [[0, 1]]}
    assert with_sets(x, **given, **sets) == "upstream's"
    assert asked == [{**given, **sets}]


@pytest.mark.parametrize("make", [fix.loss, fix.loss_with_top_p])
def test_nothing_is_attached_where_the_logits_come_from_here(make: Any) -> None:
    seen: list[Any] = []

    def original(args: Any, *more: Any) -> None:
        seen.append((args, more))

    function = make(original, ModuleType("loss"))
    more = list(range(4))
    given = arguments(allgather_cp=True)
    function(given, *more)
    args, passed = seen.pop()
    assert not args.allgather_cp
    assert passed == tuple(more)
    assert true_arguments(args) is given
    assert given.allgather_cp
    args.average = 2  # as a user's function may keep one
    assert (given.average, isinstance(args, type(given))) == (2, True)
    for other in (arguments(allgather_cp=True, loss_type="value_loss"), arguments()):
        function(other, *more)
        assert seen.pop()[0] is other
        assert true_arguments(other) is other


def test_with_top_p_sets_upstream_attaches_as_it_does() -> None:
    seen: list[Any] = []
    function = fix.loss_with_top_p(lambda args, *_: seen.append(args), ModuleType("loss"))
    for share, attached in ((1.0, False), (0.9, True)):
        function(arguments(allgather_cp=True, rollout_top_p=share), {}, 1, 1, None)
        assert seen.pop().allgather_cp is attached
