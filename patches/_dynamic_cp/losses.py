"""Which of verl's losses are sums over sequences: those of which each subgroup can compute its own part.

Such a loss is a sum of terms, one for each sequence, times `dp_size` and divided by what the whole batch has:
tokens, sequences, a constant. A mean over the sequences at hand, or a width that they happen to be padded to,
is another number in each subgroup. So a loss counts as a sum only if its very source is known to be one:
`losses.tested.json` has the digests of sources by the names of their functions. `digest_of` makes one, once
somebody has read that it is a sum.
"""

from __future__ import annotations

import functools
import json
from pkgutil import get_data

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

#: The aggregation of verl whose divisor is, unless it is set, the width of what a rank has padded.
BY_WIDTH = "seq-mean-token-sum-norm"
#: The modes in which `agg_loss` is known to be a sum.
_MODES = frozenset({"token-mean", "seq-mean-token-sum", "seq-mean-token-mean", BY_WIDTH})
_TABLE = "losses.tested.json"
#: Digests of the sources of losses, of the policy losses of verl's registry and of what adds them up.
_SUMS: dict[str, list[str]] = json.loads(get_data(__package__ or "", _TABLE) or b"")
#: Losses as they are given to the engine, and the name of what they, and policy losses, add up by.
_SFT, _PPO, _ADDS_UP = "sft_loss", "ppo_loss", "agg_loss"
#: Of known functions those around which a patch of ours stands that hands on all a policy's loss gives them.
HANDED_ON = {_ADDS_UP: "verl.critic-loss-scale"}


def is_sum(loss_function: Any) -> bool:
    """Return whether a loss, as verl's engine gets it, is known to be a sum over sequences.

    Looks at its source and its settings only. In general it is a partial that holds a configuration.
    """
    function, config = opened(loss_function)
    name = _known(function)
    if name == _SFT:
        return True
    if name != _PPO or not _adds_up(function) or config is None:
        return False
    mode = getattr(config, "loss_agg_mode", None)
    if mode not in _MODES or (mode == BY_WIDTH and getattr(config, "loss_scale_factor", None) is None):
        return False
    policy_loss = _policy_loss(function, config)
    return _known(policy_loss) not in ("", _SFT, _PPO, _ADDS_UP) and _adds_up(policy_loss)


def name_of(loss_function: Any) -> str:
    """Return a name by which the user knows a loss."""
    function, config = opened(loss_function)
    if _known(function) == _PPO and config is not None:
        return f"loss_mode={_mode_of(config)}"
    # An object's address would be another on each rank.
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def with_width(loss_function: Any, width: int) -> Any:
    """Return the loss with `width` in place of the width of a rank's own part, wherever that would count.

    `width` is in tokens, of the longest response of the whole batch. The loss that is given does not change.
    """
    if not isinstance(loss_function, functools.partial):
        return loss_function

    def set_for_batch(value: Any) -> Any:
        by_width = getattr(value, "loss_agg_mode", None) == BY_WIDTH
        if not by_width or getattr(value, "loss_scale_factor", width) is not None:
            return value
        import copy

        config = copy.copy(value)
        object.__setattr__(config, "loss_scale_factor", width)  # verl's configurations are frozen
        return config

    inner = with_width(loss_function.func, width)
    arguments = [set_for_batch(value) for value in loss_function.args]
    named = {name: set_for_batch(value) for name, value in loss_function.keywords.items()}
    return functools.partial(inner, *arguments, **named)


def opened(loss_function: Any) -> tuple[Any, Any]:
    """Return the function inside partials, and the configuration that it is given."""
    config = None
    while isinstance(loss_function, functools.partial):
        first = loss_function.args[0] if loss_function.args else None
        config = loss_function.keywords.get("config", first if config is None else config)
        loss_function = loss_function.func
    return loss_function, config


def _mode_of(config: Any) -> Any:
    return config.policy_loss.get("loss_mode", "vanilla")


def _policy_loss(ppo_loss: Any, config: Any) -> Any:
    """Return what `ppo_loss` will call for this configuration, `None` if it is going to raise."""
    try:
        return ppo_loss.__globals__["get_policy_loss_fn"](_mode_of(config))
    except (AttributeError, ValueError):
        return None


def _adds_up(function: Any) -> bool:
    """Return whether the `agg_loss` that a function calls is one that was written for."""
    return _known(function.__globals__.get(_ADDS_UP)) == _ADDS_UP


def _known(function: Any) -> str:
    """Return the name of a function whose source is known to be a sum, empty for any other."""
    from types import FunctionType

    from overlay.runtime.search import ORIGINAL, OWNER, is_wrapper

    # Never what `__wrapped__` says: around it may be anything. Whoever wraps ours has copied its marks.
    if type(function) is FunctionType and not is_wrapper(function):
        owner = vars(function).get(OWNER)
        if owner is not None and owner == HANDED_ON.get(function.__name__):
            function = vars(function)[ORIGINAL]
    code = function.__code__ if type(function) is FunctionType else None
    return code.co_name if code is not None and digest_of(code) in _SUMS.get(code.co_name, ()) else ""


@functools.lru_cache(maxsize=64)
def digest_of(code: CodeType) -> str:
    """Return the digest of the source of a function, empty if it cannot be read."""
    import ast
    import inspect
    import textwrap

    from overlay.source.digest import digest

    try:
        return digest(ast.parse(textwrap.dedent(inspect.getsource(code))).body[:1])
    except (OSError, SyntaxError, TypeError):
        return ""
