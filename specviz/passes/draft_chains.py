"""Chains drafted in one call (draft_chain.cpp): a compiled model's passes, and the choice of a token after each."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.passes import kernel_library
from specviz.passes.compiler import Program
from specviz.passes.static_passes import ChainFunction, Static


class _Memory(ctypes.Structure):
    """A contiguous tensor of at most four dimensions, for C++."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("dimensions", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * 4),
    )


def drafting_in_one_call(static: Static, program: Program) -> ChainFunction | None:
    """`DraftChains.draft` of this program; None where torch has another interface to it."""
    library = kernel_library.library()
    library.few_rows_open.restype = ctypes.c_void_p
    names = [name.encode() for name in program.weights]
    opened = library.few_rows_open(
        str(program.machine_code()).encode(),
        ctypes.c_int64(len(names)),
        (ctypes.c_char_p * len(names))(*names),
        _memories(list(program.weights.values())),
    )
    return DraftChains(static, program, ctypes.c_void_p(opened)).draft if opened else None


class DraftChains:
    """Drafts with a compiled program that is opened once more, on the same weights. opened: by `few_rows_open`."""

    def __init__(self, static: Static, program: Program, opened: ctypes.c_void_p):
        self.static, self.weights, self.opened = static, program.weights, opened
        library = kernel_library.library()
        weakref.finalize(self, library.few_rows_close, opened)
        self._draft = library.few_rows_draft

    def draft(
        self,
        unread: Tensor,
        length: int,
        rows: Sequence[Tensor],
        steps: int,
        temperature: float,
        uniforms: Tensor,
        features: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Reads n tokens after `length` others, then drafts `steps` ≥ 1 tokens, of which it reads all but the last.

        unread: [n] int64. rows: the text's, with room for all that is read. temperature: 0 takes the likeliest tokens;
        otherwise each is drawn from softmax(logits / temperature) as `specviz.rules.sampling.draw` does, with
        uniforms: [steps or more] float64. features: [n, d], what a head reads beside these tokens; None for a model.

        Returns the tokens [steps] int64, their logits [steps, vocab] float32, and the probabilities that they were
        drawn from, [steps, vocab] float32; None for the likeliest.
        """
        tokens, logits = torch.empty(steps, dtype=torch.long), torch.empty(steps, self.static.vocab_size)
        probs = torch.empty_like(logits) if temperature else None
        count, steps, length, vocab = map(ctypes.c_int64, (unread.shape[0], steps, length, self.static.vocab_size))
        given = (self.opened, ctypes.c_int64(len(rows)), _memories(rows), _pointer(unread), count, length)
        beside = None if features is None else _memories([features])
        made = (_pointer(tokens), _pointer(logits), probs if probs is None else _pointer(probs))
        if self._draft(*given, beside, steps, *made, _pointer(uniforms), vocab, ctypes.c_float(temperature)):
            raise RuntimeError(f"A compiled pass of {self.static.name} failed.")
        return tokens, logits, probs


def _memories(tensors: Sequence[Tensor]) -> ctypes.Array[_Memory]:
    memories = (_Memory * len(tensors))()
    for memory, tensor in zip(memories, tensors):
        memory.data, memory.dimensions = tensor.data_ptr(), tensor.dim()
        memory.dtype = kernel_library.dtype_number(tensor.dtype)
        memory.sizes[: tensor.dim()] = tensor.shape
    return memories


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
