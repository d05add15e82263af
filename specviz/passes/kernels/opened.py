"""Compiled programs as C++ opens them, and tensors as it sees them (programs.h)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

from torch import Tensor

from specviz.passes.kernels import kernel_library
from specviz.passes.programs import Program


class Memory(ctypes.Structure):
    """A contiguous tensor of at most four dimensions, for C++."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("dimensions", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * 4),
    )


def memories(tensors: Sequence[Tensor]) -> ctypes.Array[Memory]:
    memories = (Memory * len(tensors))()
    for memory, tensor in zip(memories, tensors):
        memory.data, memory.dimensions = tensor.data_ptr(), tensor.dim()
        memory.dtype = kernel_library.dtype_number(tensor.dtype)
        memory.sizes[: tensor.dim()] = tensor.shape
    return memories


class OpenedProgram:
    """A compiled program that is opened once more, for C++, on the same weights."""

    def __init__(self, program: Program, handle: ctypes.c_void_p):
        """handle: of `few_rows_open`."""
        self.handle, self.weights = handle, program.weights
        weakref.finalize(self, kernel_library.library().few_rows_close, handle)

    @classmethod
    def of(cls, program: Program) -> OpenedProgram | None:
        """None where torch has another interface to it, or its machine code has no place on the disk."""
        try:
            machine_code = program.machine_code()
        except OSError:
            return None
        library = kernel_library.library()
        library.few_rows_open.restype = ctypes.c_void_p
        names = [name.encode() for name in program.weights]
        handle = library.few_rows_open(
            str(machine_code).encode(),
            ctypes.c_int64(len(names)),
            (ctypes.c_char_p * len(names))(*names),
            memories(list(program.weights.values())),
        )
        return cls(program, ctypes.c_void_p(handle)) if handle else None
