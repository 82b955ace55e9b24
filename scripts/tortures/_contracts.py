"""The contract of each patch, from its own folder.

They run in a process of their own, with one release first on the path. An exception is not caught here: a run
that ends with an error is not silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.source.registry import contract_of, load_patches

if TYPE_CHECKING:
    from overlay.patch import Contract

CONTRACTS: dict[str, Contract] = {
    patch: contract for patch in load_patches() if (contract := contract_of(patch)) is not None
}
