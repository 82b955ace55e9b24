"""Short forms in which the records are written."""

from __future__ import annotations

from functools import partial
from itertools import product

from overlay.defect import HARMS, Defect, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from overlay.defect import Condition as OnSettings
    from overlay.patch import Project

#: slime's own loss and miles' divide by themselves without a loss per token, and say that there is one token.
NOT_SLIME = Setting(key="rollout_batch_size", among=(None,))


def all_of(*conditions: OnSettings | tuple[OnSettings, ...]) -> tuple[tuple[OnSettings, ...], ...]:
    """Return the ways to meet a defect where all of these conditions hold, of `one_of` any one."""
    return tuple(product(*(one if isinstance(one, tuple) else (one,) for one in conditions)))


def one_of(*conditions: OnSettings) -> tuple[OnSettings, ...]:
    """Return conditions of which one is enough, for `all_of`."""
    return conditions


def by_harm(project: Project) -> list[partial[Defect]]:
    """Return what makes a record of a project, one for each of `HARMS`, in that order."""
    return [partial(Defect, project=project, harm=harm) for harm in HARMS]
