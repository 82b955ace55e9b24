"""The contract of each patch: that in its own folder, and here those of patches that have none there yet.

They run in a process of their own, with one release first on the path. An exception is not caught here: a run
that ends with an error is not silent.
"""

from __future__ import annotations

from overlay.catalogue.registry import contract_of, load_patches
from overlay.patch import Contract
from tortures import _contracts_of_processes as of_processes

_HERE = {"megatron.dynamic-cp-names": Contract(check=of_processes.megatron_dynamic_cp, starts=True)}

CONTRACTS: dict[str, Contract] = {
    patch: contract for patch in load_patches() if (contract := contract_of(patch) or _HERE.get(patch))
}
