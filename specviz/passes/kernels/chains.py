"""Drafts, chains and trees, made in one call of C++ (chains.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.opened import Memory, OpenedProgram, memories
from specviz.passes.kernels.operations import GivenLayer
from specviz.passes.kernels.packed_linear import FewRowsLinear
from specviz.passes.made_drafts import Choice, RawDraft
from specviz.passes.static_passes import StaticPass


class DraftsInOneCall:
    """Drafts with a compiled program. fusion: of a head's further input, if that is yet to be fused."""

    def __init__(self, static: StaticPass, opened: OpenedProgram, fusion: Fusion | None = None):
        self.static, self.opened, self.fusion = static, opened, fusion
        self._draft = kernel_library.library().few_rows_draft
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
        arguments = (self.opened.handle, ctypes.c_int64(len(kv)), memories(kv), _pointer(unread), *counts)
        features = None if features is None else features.contiguous()
        inputs = None if features is None else memories([features])
        fusion = None if self.fusion is None else ctypes.byref(self.fusion.struct)
        in_place = ctypes.c_bool(self.static.drafts_in_place)
        count = self._draft(*arguments, in_place, inputs, fusion, *room.arguments(uniforms))
        if count < 0:
            raise RuntimeError(f"A compiled pass of {self.static.name} failed.")
        return room.filled(count)


#: The dtypes of embeddings and hidden states that C++ reads.
READ_DTYPES = (torch.float32, torch.bfloat16)


class FusedBy(NamedTuple):
    """What fuses a head's further input."""

    norms: Sequence[LlamaRMSNorm] = ()  # one for all of the states, one for each, or none; in float32
    layer: FewRowsLinear | None = None  # without one, and without norms, states are divided
    divisors: Tensor = torch.empty(0)  # [width] float32


class Fusion:
    """Fuses the target's hidden states into what a head reads with each token: norms of equal parts of them, then a
    linear layer; or divides them.

    dtype: of what comes and goes, one of `READ_DTYPES`.
    """

    def __init__(self, fused_by: FusedBy, dtype: torch.dtype):
        self.fused_by, self.dtype = fused_by, dtype  # which hold the memory that the struct names
        norms, layer, divisors = fused_by
        self.weights = torch.cat([norm.weight for norm in norms]) if norms else divisors.contiguous()
        self.inputs = len(divisors) if layer is None else layer.inputs
        self.struct = _Fusion(
            len(norms),
            self.weights.data_ptr(),
            norms[0].variance_epsilon if norms else 0.0,
            self.inputs,
            GivenLayer(outputs=self.inputs) if layer is None else _given(layer),
            kernel_library.dtype_number(dtype),
        )

    def __call__(self, states: Tensor) -> Tensor:
        """[n, layers · d] -> [n, width]."""
        states = states.contiguous()
        fused = torch.empty(len(states), self.struct.layer.outputs, dtype=self.dtype)
        kernel_library.library().few_rows_fuse(ctypes.byref(self.struct), memories([states]), _pointer(fused))
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

    _fields_ = (("embedded", Memory), ("layer", GivenLayer), ("last", ctypes.c_int64))

    @classmethod
    def of(cls, gain: Gain) -> _Gain:
        return cls(memories([gain.embeddings])[0], _given(gain.layer), gain.last.item())


class OnePass(NamedTuple):
    """How one pass makes all rows of a draft: it reads the text's new tokens, then its last one once more and masks;
    or, where no text is read, the last one alone."""

    masks: Sequence[int] | None  # None: it reads no text
    skipped: int = 0  # rows before the first that drafts
    gain: Gain | None = None  # of the rows, whatever the last token


class GivenOnePass(ctypes.Structure):
    """`OnePass` for C++."""

    _fields_ = (
        ("reads_text", ctypes.c_bool),
        ("count", ctypes.c_int64),
        ("masks", ctypes.POINTER(ctypes.c_int64)),
        ("skipped", ctypes.c_int64),
        ("gain", ctypes.POINTER(_Gain)),
    )

    @classmethod
    def of(cls, one_pass: OnePass) -> GivenOnePass:
        masks, skipped, gain = one_pass
        ids = (ctypes.c_int64 * len(masks or ()))(*(masks or ()))
        return cls(masks is not None, len(ids), ids, skipped, ctypes.pointer(_Gain.of(gain)) if gain else None)


class _Room:
    """Memory for a draft of `levels` levels."""

    def __init__(self, levels: int, vocab: int, choice: Choice):
        most = levels * choice.branches
        self.levels, self.choice = levels, GivenChoice.of(choice)
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


class GivenChoice(ctypes.Structure):
    """`Choice` for C++."""

    _fields_ = (("branches", ctypes.c_int64), ("temperature", ctypes.c_float), ("as_paths", ctypes.c_bool))

    @classmethod
    def of(cls, choice: Choice) -> GivenChoice:
        return cls(choice.branches, choice.temperature, choice.as_paths)


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
