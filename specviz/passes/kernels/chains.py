"""Drafts, chains and trees, made or judged in one call of C++ (chains.cpp, judging.cpp)."""

from __future__ import annotations

import ctypes
import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.operations import GivenLayer
from specviz.passes.kernels.packed_linear import FewRowsLinear
from specviz.passes.made_drafts import Choice, DraftFunction, RawDraft
from specviz.passes.programs import Program
from specviz.passes.static_passes import StaticPass
from specviz.rules.draft import Decision, Draft, Uniforms
from specviz.rules.sampling import require_numbers


class _Memory(ctypes.Structure):
    """A contiguous tensor of at most four dimensions, for C++."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("dimensions", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * 4),
    )


def drafting_in_one_call(static: StaticPass, program: Program, fusion: Fusion | None = None) -> DraftFunction | None:
    """`DraftsInOneCall.draft` of this program; None where torch has another interface to it, or its machine code has no
    place on the disk: then drafts are made step by step."""
    try:
        machine_code = program.machine_code()
    except OSError:
        return None
    library = kernel_library.library()
    library.few_rows_open.restype = ctypes.c_void_p
    names = [name.encode() for name in program.weights]
    opened = library.few_rows_open(
        str(machine_code).encode(),
        ctypes.c_int64(len(names)),
        (ctypes.c_char_p * len(names))(*names),
        _memories(list(program.weights.values())),
    )
    return DraftsInOneCall(static, program, ctypes.c_void_p(opened), fusion).draft if opened else None


class DraftsInOneCall:
    """Drafts with a compiled program that is opened once more, on the same weights.

    opened: by `few_rows_open`. fusion: of a head's further input, if that is yet to be fused.
    """

    def __init__(self, static: StaticPass, program: Program, opened: ctypes.c_void_p, fusion: Fusion | None):
        self.static, self.weights, self.opened, self.fusion = static, program.weights, opened, fusion
        library = kernel_library.library()
        weakref.finalize(self, library.few_rows_close, opened)
        self._draft = library.few_rows_draft
        self._draft.restype = ctypes.c_int64

    def draft(
        self,
        unread: Tensor,
        length: int,
        kv: Sequence[Tensor],
        levels: int,
        choice: Choice,
        uniforms: Tensor,
        features: Tensor | None = None,
    ) -> RawDraft:
        """Reads n tokens after `length` others, then drafts `levels` ≥ 1 levels, of which it reads all but the last.

        unread: [n] int64. kv: the text's keys and values, with room for all that is written. uniforms: [levels ·
        branches or more] float64. features: [n, width], a head's further input with these tokens, or what that is
        fused from, where there is a `fusion`; None for a model.
        """
        room = _Room(levels, self.static.vocab_size, choice)
        counts = map(ctypes.c_int64, (unread.shape[0], length))
        arguments = (self.opened, ctypes.c_int64(len(kv)), _memories(kv), _pointer(unread), *counts)
        features = None if features is None else features.contiguous()
        inputs = None if features is None else _memories([features])
        fusion = None if self.fusion is None else ctypes.byref(self.fusion.struct)
        in_place = ctypes.c_bool(self.static.drafts_in_place)
        count = self._draft(*arguments, in_place, inputs, fusion, *room.arguments(uniforms))
        if count < 0:
            raise RuntimeError(f"A compiled pass of {self.static.name} failed.")
        return room.filled(count)


#: The dtypes of embeddings and hidden states that C++ reads.
READ_DTYPES = (torch.float32, torch.bfloat16)


class Fusion:
    """Fuses the target's hidden states into what a head reads with each token: norms of equal parts of them, then a
    linear layer.

    norms: one for all of the states, one for each, or none; in float32. dtype: of what comes and goes, one of
    `READ_DTYPES`.
    """

    def __init__(self, norms: Sequence[LlamaRMSNorm], layer: FewRowsLinear, dtype: torch.dtype):
        self.layer, self.dtype = layer, dtype
        self.weights = torch.cat([norm.weight for norm in norms]) if norms else torch.empty(0, dtype=torch.float32)
        self.struct = _Fusion(
            len(norms),
            self.weights.data_ptr(),
            norms[0].variance_epsilon if norms else 0.0,
            layer.inputs,
            _given(layer),
            kernel_library.dtype_number(dtype),
        )

    def __call__(self, states: Tensor) -> Tensor:
        """[n, layers · d] -> [n, width]."""
        states = states.contiguous()
        fused = torch.empty(len(states), self.layer.outputs, dtype=self.dtype)
        kernel_library.library().few_rows_fuse(ctypes.byref(self.struct), _memories([states]), _pointer(fused))
        return fused


class _Fusion(ctypes.Structure):
    """`Fusion` for C++."""

    _fields_ = (
        ("norms", ctypes.c_int64),
        ("weights", ctypes.c_void_p),
        ("epsilon", ctypes.c_float),
        ("inputs", ctypes.c_int64),
        ("layer", GivenLayer),
        ("dtype", ctypes.c_int32),
    )


def _given(layer: FewRowsLinear) -> GivenLayer:
    return GivenLayer.of((layer.panels, layer.scales, layer.bias), layer.outputs)


class Gain(NamedTuple):
    """What a row of logits gains from the token before its own: W e, e being that token's embedding."""

    embeddings: Tensor  # [vocab, rank], in one of `READ_DTYPES`, contiguous
    layer: FewRowsLinear  # W
    last: Tensor  # [1] int64, the text's last token


def spread(rows: Tensor, choice: Choice, uniforms: Tensor, gain: Gain | None = None) -> RawDraft:
    """A draft from rows that are there already, one for each level: [levels, vocab] float32, contiguous.

    gain: added to each level's row for every token that it continues. The kernels must be loaded.
    """
    levels, vocab = rows.shape
    room = _Room(levels, vocab, choice)
    function = kernel_library.library().few_rows_spread
    function.restype = ctypes.c_int64
    given = None if gain is None else ctypes.byref(_Gain.of(gain))
    return room.filled(function(_pointer(rows), given, *room.arguments(uniforms)))


class _Gain(ctypes.Structure):
    """`Gain` for C++."""

    _fields_ = (("embedded", _Memory), ("layer", GivenLayer), ("last", ctypes.c_int64))

    @classmethod
    def of(cls, gain: Gain) -> _Gain:
        return cls(_memories([gain.embeddings])[0], _given(gain.layer), gain.last.item())


class _Room:
    """Memory for a draft of `levels` levels."""

    def __init__(self, levels: int, vocab: int, choice: Choice):
        most = levels * choice.branches
        self.levels, self.choice = levels, _Choice(choice.branches, choice.temperature, choice.as_paths)
        self.tokens, self.parents = torch.empty(2, most, dtype=torch.long)
        self.logits = torch.empty(most, vocab, dtype=torch.float32)
        self.probs = torch.empty(most, vocab, dtype=torch.float32) if choice.temperature else None

    def arguments(self, uniforms: Tensor) -> tuple[object, ...]:
        """From `levels` on, as both functions take them."""
        outputs = map(_pointer, (self.tokens, self.parents, self.logits, self.probs))
        sizes = ctypes.c_int64(self.levels), ctypes.byref(self.choice)
        return *sizes, *outputs, _pointer(uniforms), ctypes.c_int64(self.logits.shape[1])

    def filled(self, count: int) -> RawDraft:
        parents = tuple(self.parents[:count].tolist())
        probs = None if self.probs is None else self.probs[:count]
        return RawDraft(self.tokens[:count], parents, self.logits[: len(set(parents))], probs)


class _Choice(ctypes.Structure):
    """`Choice` for C++."""

    _fields_ = (("branches", ctypes.c_int64), ("temperature", ctypes.c_float), ("as_paths", ctypes.c_bool))


def _memories(tensors: Sequence[Tensor]) -> ctypes.Array[_Memory]:
    memories = (_Memory * len(tensors))()
    for memory, tensor in zip(memories, tensors):
        memory.data, memory.dimensions = tensor.data_ptr(), tensor.dim()
        memory.dtype = kernel_library.dtype_number(tensor.dtype)
        memory.sizes[: tensor.dim()] = tensor.shape
    return memories


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


class JudgedDraft:
    """The verdict on a draft of n tokens: a chain, or siblings as `verify_siblings` judges them.

    logits: [n + 1, vocab] float32, the target's. temperature: 0 for greedy drafts. as_block: a chain by `verify_block`.
    The kernels must be loaded. Raises SpecvizError (field ``dtype``) where logits are not numbers (`require_numbers`).
    """

    def __init__(self, draft: Draft, logits: Tensor, uniforms: Uniforms, temperature: float, as_block: bool = False):
        n, vocab = self._shape = len(draft.parents), logits.shape[1]
        verdict, parents = (ctypes.c_int64 * (2 * n + 2))(), (ctypes.c_int64 * n)(*draft.parents)
        found = draft.logits if draft.probs is None else draft.probs
        rows, row_count = (None, 0) if found is None else (found.float().contiguous(), len(found))
        place = None if rows is None else rows.data_ptr()
        drafted = draft.tokens.data_ptr(), parents, place, row_count
        judged = logits.data_ptr(), n, vocab, temperature, as_block, *drafted
        if temperature:
            # In one piece: probabilities of rows and of the next token, four values a token.
            self._numbers = torch.empty((n + 2) * vocab + 4 * n, dtype=torch.float32)
            drawn_from = None if draft.probs is None else place
            coins = uniforms.accept.data_ptr(), uniforms.next.data_ptr()
            accepted = _judge()(*judged, drawn_from, *coins, self._numbers.data_ptr(), verdict)
        else:
            self._numbers, accepted = None, _judge()(*judged, None, None, None, None, verdict)
        if accepted < 0:
            require_numbers(math.nan, drafted=accepted == -2)
        tokens = draft.tokens.tolist()
        self.path = tuple(verdict[:accepted])  # the accepted draft tokens
        self.tokens = (*[tokens[place] for place in self.path], verdict[2 * n + 1])  # those, and the next token
        self.choices = tuple(verdict[n : 2 * n + 1])  # the likeliest token of each row

    @property
    def bytes(self) -> int:
        return 0 if self._numbers is None else self._numbers.nbytes

    def probs(self) -> Tensor:
        """[n + 1, vocab] float32, softmax(logits / temperature), for a temperature above 0."""
        n, vocab = self._shape
        return self._numbers[: (n + 1) * vocab].view(n + 1, vocab)

    def decision(self) -> Decision:
        """The same as tensors, for a temperature above 0."""
        n, vocab = self._shape
        probs = self._numbers[(n + 1) * vocab :][:vocab]
        sums = probs.cumsum(-1, dtype=torch.float64)
        p, q, p_left, bounds = self._numbers[(n + 2) * vocab :].view(4, n)
        accepted = torch.zeros(n, dtype=torch.bool)
        accepted[list(self.path)] = True
        row = torch.tensor([self.path[-1] + 1 if self.path else 0])
        return Decision(accepted, p, q, bounds, row, torch.tensor(self.tokens[-1]), probs, sums, p_left)


@functools.cache
def _judge() -> Callable[..., int]:
    function = kernel_library.library().few_rows_judge
    memory, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [memory, number, number, ctypes.c_float, ctypes.c_bool, *[memory] * 3, number, *[memory] * 5]
    function.restype = number
    return function
