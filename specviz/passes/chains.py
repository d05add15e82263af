"""Chains drafted or judged in one call of C++ (chains.cpp)."""

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.passes import kernel_library
from specviz.passes.compiler import Program
from specviz.passes.static_passes import ChainFunction, StaticPass
from specviz.rules.draft import Decision, Draft, Uniforms


class _Memory(ctypes.Structure):
    """A contiguous tensor of at most four dimensions, for C++."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("dimensions", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * 4),
    )


def drafting_in_one_call(static: StaticPass, program: Program) -> ChainFunction | None:
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

    def __init__(self, static: StaticPass, program: Program, opened: ctypes.c_void_p):
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
        uniforms: [steps or more] float64. features: [n, d], a head's further input with these tokens; None for a model.

        Returns the tokens [steps] int64, their logits [steps, vocab] float32, and the probabilities that they were
        drawn from, [steps, vocab] float32; None for the likeliest.
        """
        tokens, logits = torch.empty(steps, dtype=torch.long), torch.empty(steps, self.static.vocab_size)
        probs = torch.empty_like(logits) if temperature else None
        count, steps, length, vocab = map(ctypes.c_int64, (unread.shape[0], steps, length, self.static.vocab_size))
        given = (self.opened, ctypes.c_int64(len(rows)), _memories(rows), _pointer(unread), count, length)
        inputs = None if features is None else _memories([features])
        made = (_pointer(tokens), _pointer(logits), probs if probs is None else _pointer(probs))
        if self._draft(*given, inputs, steps, *made, _pointer(uniforms), vocab, ctypes.c_float(temperature)):
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


class JudgedChain:
    """The verdict on a chain of n drafted tokens.

    logits: [n + 1, vocab] float32, the target's. temperature: 0 for greedy drafts. as_block: by `verify_block`, not by
    `verify_token_by_token`. The kernels must be loaded.
    """

    def __init__(self, draft: Draft, logits: Tensor, uniforms: Uniforms, temperature: float, as_block: bool = False):
        n, vocab = self._shape = len(draft.parents), logits.shape[1]
        told = (ctypes.c_int64 * (2 * n + 2))()
        given = logits.data_ptr(), n, vocab, temperature, as_block, draft.tokens.data_ptr()
        if temperature:
            # In one piece: running sums in float64, probabilities of rows and of the next token, three values a token.
            self._made = torch.empty((n + 4) * vocab + 3 * n)
            probs = None if draft.probs is None else draft.probs.contiguous()
            drawn_from = None if probs is None else probs.data_ptr()
            coins = uniforms.accept.data_ptr(), uniforms.next.data_ptr()
            kept = _judge()(*given, drawn_from, *coins, self._made.data_ptr(), told)
        else:
            self._made, kept = None, _judge()(*given, None, None, None, None, told)
        self.path = tuple(range(kept))  # the draft tokens that are kept
        self.tokens = (*told[:kept], told[n])  # those, and the one after them
        self.choices = tuple(told[n + 1 :])  # the likeliest token of each row

    @property
    def bytes(self) -> int:
        return 0 if self._made is None else self._made.nbytes

    def probs(self) -> Tensor:
        """[n + 1, vocab] float32, softmax(logits / temperature), for a temperature above 0."""
        n, vocab = self._shape
        return self._made[2 * vocab : (n + 3) * vocab].view(n + 1, vocab)

    def decision(self) -> Decision:
        """The same as tensors, for a temperature above 0."""
        n, vocab = self._shape
        sums, probs = self._made[: 2 * vocab].view(torch.float64), self._made[(n + 3) * vocab :][:vocab]
        p, q, bounds = self._made[(n + 4) * vocab :].view(3, n)
        kept, row = torch.arange(n) < len(self.path), torch.tensor([len(self.path)])
        return Decision(kept, p, q, bounds, row, torch.tensor(self.tokens[-1]), probs, sums)


@functools.cache
def _judge() -> Callable[..., int]:
    function = kernel_library.library().few_rows_judge
    memory, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [memory, number, number, ctypes.c_float, ctypes.c_bool, *[memory] * 6]
    function.restype = number
    return function
