"""Whether all ranks split micro-batches in the same way, asked once in each process group.

Not once in each process: to a rank that came in the place of another, those that were there must answer.
"""

from typing import Any
from weakref import WeakSet

from overlay.errors import OverlayError
from overlay.model.settings import dynamic_cp

#: The groups in which it was asked. A group that is laid out anew is another object, on each of its ranks.
#: Not in a patch, so that ranks on which patches are put in anew do not ask alone.
_asked: WeakSet[Any] = WeakSet()


def agree(group: Any) -> None:
    """Raise `ValueError` on every data parallel rank of a group unless all split in the same way.

    Ranks that do not would wait for each other for ever. Each must call this as often as the others. On a
    rank whose setting means nothing it raises `SelectionError`.
    """
    if group in _asked:
        return
    import torch.distributed as dist

    wrong = None
    try:
        own = dynamic_cp()
    except OverlayError as error:  # raised once the others, who wait for an answer, have it
        own, wrong = str(error), error
    ways: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(ways, own, group=group)
    if wrong is not None:
        raise wrong
    if len(set(ways)) > 1:
        raise ValueError(
            f"OVERLAY_DCP differs between ranks ({', '.join(ways)}): set it to one value on all of them"
        )
    _asked.add(group)
