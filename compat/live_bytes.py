"""Bytes of the tensors that are alive, counted by their storages or by the allocator of the GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """While it lasts, the peak of what is alive beyond the tensors that are given to it.

    On a CPU storages are counted after each operation; what an operation itself has for a while and gives
    back does not show. On a GPU the allocator is asked, which knows that too.
    """

    def __init__(self, *there: Any) -> None:
        super().__init__()
        self.peak = 0
        self._there = {tensor.untyped_storage()._cdata for tensor in there}
        #: By storage, what is alive, or was when that was last looked at, and its bytes in all.
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._bytes = 0
        self._cuda = any(tensor.is_cuda for tensor in there)
        self._base = 0

    def __enter__(self) -> Any:
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._base = torch.cuda.memory_allocated()
        return super().__enter__()

    def __exit__(self, *what: object) -> Any:
        if self._cuda:
            torch.cuda.synchronize()
            self.peak = torch.cuda.max_memory_allocated() - self._base
        return super().__exit__(*what)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self._cuda:
            self._count(out)
        return out

    def alive(self) -> int:
        """Return the bytes that are alive on a CPU now."""
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        return sum(size for _, size in self._live.values())

    def _count(self, out: Any) -> None:
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self._there:
                    self._bytes += size - self._live.get(key, (None, 0))[1]
                    self._live[key] = StorageWeakRef(storage), size
        # Below the peak it does not matter what is still alive, and to look takes longer than an operation.
        if self._bytes > self.peak:
            self._bytes = self.alive()
            self.peak = max(self.peak, self._bytes)
