"""Memory in large pages, for the weights that every pass reads from the first to the last.

The processor looks up where each page lies. Large pages are few: with them, passes over 55 MB of weights took a seventh
less time than with pages of 4 KB.
"""

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

#: The size of a large page on most processors, and how much is reserved at a time: what is not used takes no memory.
_PAGE, _RESERVED = 2 << 20, 64 << 20

#: Whether the system can be asked for them.
_LARGE = hasattr(mmap, "MADV_HUGEPAGE")

#: Where a tensor may begin, as torch has it.
_ALIGNED = 64


class HugePages:
    """Lays tensors side by side in memory for which large pages are asked for, where the system has them (Linux).

    The memory is freed with the last of its tensors.
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """`parts`, which lie in main memory, one after the other along their first dimension."""
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        room = self.room(math.prod(shape) * parts[0].element_size())
        return torch.cat(list(parts), out=room.view(parts[0].dtype).view(shape))

    def room(self, size: int) -> Tensor:
        """[size] uint8, of any value."""
        if _LARGE and size > len(self._left):
            # Where no addresses are left for so much, torch allocates what is needed, or raises.
            with contextlib.suppress(OSError):
                self._left = _reserved(max(_RESERVED, size))
        if size > len(self._left):
            return torch.empty(size, dtype=torch.uint8)
        room = self._left[:size]
        self._left = self._left[-(-size // _ALIGNED) * _ALIGNED :]
        return room


def _reserved(size: int) -> Tensor:
    """[at least `size`] uint8, zeros, from the beginning of a large page on."""
    memory = mmap.mmap(-1, size + _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A system without large pages raises; the memory then has small ones.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    return whole[-whole.data_ptr() % _PAGE :][:size]
