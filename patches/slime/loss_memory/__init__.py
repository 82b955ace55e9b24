"""`slime.loss-memory`: log-probabilities and entropy whose only tensor of full size is the gradient.

The original is replaced as a whole: cutting the logits apart, a copy for each use and a softmax kept for the
backward are what it consists of. Which rows belong to which sample is asked of slime's own `get_responses`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from overlay.compat.projects import SLIME
from overlay.patch import Calls, Patch, Removal, Variant, known, one_target, replaced, variant
from overlay.patches.slime.loss_memory.fix import (
    make_loss,
    make_packed,
    make_packed_pair,
    make_padded,
    make_paired,
    make_step_loss,
    make_step_loss_with_top_p,
    make_values,
    make_with_top_p,
)

_LOSS = "slime.backends.megatron_utils.loss"
_CP = "slime.backends.megatron_utils.cp_utils"
_SITE = f"{_LOSS}:get_log_probs_and_entropy"
_LOSS_FUNCTION = f"{_LOSS}:loss_function"
_VALUES = f"{_LOSS}:get_values"


def _variant(
    name: str,
    versions: str,
    make: Callable[..., Any],
    *,
    digests: tuple[str, ...],
    rows: tuple[str, ...],
    offsets: str,
    slices: tuple[str, ...] = (),
    loss: tuple[Callable[..., Any], tuple[str, ...]] | None = None,
    values: tuple[str, ...] = (),
) -> Variant:
    """Return a variant by its factories, and the digests of what is replaced or says which rows are whose.

    Of the latter all is relied on: a change anywhere in it gives other rows.
    """
    parts: list[Any] = [
        replaced(_SITE, make, *digests),
        known(f"{_LOSS}:get_responses", *rows),
        known(f"{_CP}:get_logits_and_tokens_offset_with_cp", offsets),
    ]
    if slices:
        parts.append(known(f"{_CP}:slice_log_prob_with_cp", *slices))
    losses = ["policy_loss_function"]
    if loss is not None:
        # It loses its zero too, so every rank has to get there.
        losses.append("sft_loss_function")
        parts.append(replaced(_LOSS_FUNCTION, loss[0], *loss[1]))
    if values:
        parts.append(replaced(_VALUES, make_values, *values))
    # Whatever else they compute, it is from here that they have their log-probabilities.
    parts += [Calls(site=f"{_LOSS}:{one}", callee="get_log_probs_and_entropy") for one in losses]
    return variant(name, versions, *parts)


PATCH = Patch(
    id="slime.loss-memory",
    summary="Log-probs and entropy of the responses with the gradient as the only full-size tensor",
    why=(
        "slime's loss copies the logits of every response for the log-probabilities and again for the "
        "entropy, and keeps a softmax for each: three to four times the logits on top of them, which is "
        "where runs on slime 0.2 end for lack of memory. The first cure (slime#1788) stopped the jobs that "
        "use allgather context parallelism and was half taken back, and 0.3.1 still needs two to three times "
        "the logits. With the patch the forward keeps a few numbers for each row, the backward computes the "
        "rest again in the gradient itself, and all ranks enter the same collectives whether or not they "
        "have a response token."
    ),
    changes=("memory",),
    met="Every job that trains with slime's policy or SFT loss. Numbers change by rounding.",
    upstream=(
        "THUDM/slime#1788",
        "THUDM/slime#1822",
        "THUDM/slime#2123",
        "THUDM/slime#2144",
        "THUDM/slime#1951",
    ),
    evidence=(
        "Log-probabilities, entropy, losses and gradients are those of one process in float64, on ranks of "
        "tensor and context parallelism (tests/real/test_loss_memory_ranks.py)."
    ),
    remove=Removal(
        when="a release of slime needs no more than the gradient besides the logits",
        test="tests/real/test_loss_memory_ranks.py::test_upstream_alone_needs_no_more_than_the_gradient",
    ),
    targets=one_target(
        SLIME,
        # Of commits between the releases too, which call themselves what the release before them does.
        _variant(
            "0.2.0",
            ">=0.1.0.dev0,<0.2.2.dev0",
            make_packed,
            digests=("c9b85f289992", "721f83b74784", "081bffc2a47d", "841c4db76309", "4d14febdb9e3"),
            rows=("ecf915c1fd15", "87c83fa75c99", "85018937839d"),
            offsets="c2f90eb66efd",
        ),
        _variant(
            "0.2.2",
            ">=0.2.1.dev0,<0.2.3.dev0",
            make_padded,
            digests=("8c1eddb4ac56",),
            rows=("9beb0231f80f", "44844ee20458"),
            offsets="79971ab4ccd9",
        ),
        # Commits between 0.2.2 and 0.2.3, which have no allgather context parallelism yet.
        _variant(
            "after 0.2.2",
            ">=0.2.2.dev0,<0.2.3.dev0",
            make_paired,
            digests=("a3bb1b60854d",),
            rows=("44844ee20458",),
            offsets="79971ab4ccd9",
        ),
        # The tag v0.2.4 calls itself 0.2.3. What calls itself 0.2.4 are commits, #1788's and #1822's.
        _variant(
            "0.2.3",
            ">=0.2.2.dev0,<0.2.5.dev0",
            make_paired,
            digests=("c595062ef44d", "6aaf21fd57e4", "633b50df9415", "3a096f614230"),
            rows=("02c0aec8decb",),
            offsets="79971ab4ccd9",
            slices=("1a8f033fa038", "9eebe53f3605"),
            loss=(make_loss, ("1b44de1d3a1e", "d00e830ae3d5", "ea733a53889b")),
            values=("6960c72ec465", "ceaaf44309f4"),
        ),
        # Commits before 0.3.0, whose loss is told the number of samples of a step already.
        _variant(
            "before 0.3.0",
            ">=0.2.3.dev0,<0.3.1.dev0",
            make_paired,
            digests=("3a096f614230",),
            rows=("02c0aec8decb",),
            offsets="79971ab4ccd9",
            slices=("1a8f033fa038", "9eebe53f3605"),
            loss=(make_step_loss, ("8e9770c7971e",)),
            values=("6960c72ec465", "ceaaf44309f4"),
        ),
        _variant(
            "0.3.0",
            ">=0.2.4.dev0,<0.3.1.dev0",
            make_paired,
            digests=("3a096f614230",),
            rows=("fe65d16dfa38",),
            offsets="79971ab4ccd9",
            slices=("9eebe53f3605",),
            loss=(make_step_loss, ("665e3a290658", "9f64ca2b9d13")),
            values=("0ab921de6e7b",),
        ),
        # Commits between 0.3.0 and 0.3.1: packed sequences only, and no top-p sets yet.
        _variant(
            "after 0.3.0",
            ">=0.3.0.dev0,<0.3.1.dev0",
            make_packed_pair,
            digests=("f7c0109446b4",),
            rows=("d8b426e9b477",),
            offsets="c2f90eb66efd",
            slices=("734123b9cf6a",),
            loss=(make_step_loss, ("1bf4d58e4815",)),
        ),
        _variant(
            "0.3.1",
            ">=0.3.0.dev0,<0.3.2.dev0",
            make_with_top_p,
            digests=("c3f2e221a95b", "1cb71cfcbda5"),
            rows=("d8b426e9b477",),
            offsets="c2f90eb66efd",
            slices=("734123b9cf6a",),
            loss=(make_step_loss_with_top_p, ("1bf4d58e4815",)),
        ),
    ),
)
