"""Weights that a part's files hold as codes of few bits, found by the tensors' names, and unpacked:

    w = (code − zero point) · scale

There is a scale for all codes, for each row, for each group in a row or for each block. Sources: compressed-tensors
0.20 (its formats float-, int- and pack-quantized in 4 and 8 bits, nvfp4, mxfp4 and mxfp8), transformers (FP8), NVIDIA's
Model Optimizer (FP8, NVFP4), GPTQModel's linear layer for torch, AutoAWQ's for gemm. Activations and caches, which
servers round too, are not rounded here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

#: Tensors of a layer that stand for its ``weight`` or lie beside it.
_SCALES = ("weight_scale", "weight_scale_inv")
_CODES = (*_SCALES, "weight_scale_2", "weight_global_scale", "weight_packed", "weight_shape", "weight_zero_point")

#: The same of GPTQ and AWQ, besides ``g_idx``, the group of each input.
_TRANSPOSED = ("qweight", "qzeros", "scales")

#: Which of eight columns the digits of a word stand for in AWQ's files, from the lowest.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

#: Scales of activations and caches.
_OTHER_SCALES: tuple[str, ...] = ("input_scale", "input_zero_point", "input_global_scale", "output_scale")
_OTHER_SCALES += ("q_scale", "k_scale", "v_scale")

#: What layers have in ways that are not unpacked here: bitsandbytes, HQQ.
_UNKNOWN = (".absmax", ".SCB", ".W_q")

#: The values of codes in 4 bits, less the sign in their highest one (E2M1).
_FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


class UnknownCodes(Exception):
    """Says of a tensor that its codes are not unpacked here."""


class CodedWeights:
    """The tensors of files some of whose weights may be codes."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any], read: Callable[[str], Tensor]
    ):
        """shapes: of the tensors in the files. settings: the part's config.json. read: reads a tensor."""
        self.in_files, self.read = shapes, read
        self._settings: dict[str, Any] = settings.get("quantization_config") or {}
        #: Of each coded weight, the names of its tensors by what they are to their layer.
        self.stored: dict[str, dict[str, str]] = {}
        for name in shapes:
            layer, _, own = name.rpartition(".")
            if own in (*_CODES, *_TRANSPOSED, "g_idx"):
                self.stored.setdefault(f"{layer}.weight", {})[own] = name
        for weight in self.stored.keys() & shapes.keys():
            self.stored[weight]["weight"] = weight

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors as they are once unpacked. Raises UnknownCodes, and what reading raises."""
        if unknown := next((name for name in self.in_files if name.endswith(_UNKNOWN)), None):
            raise UnknownCodes(unknown)
        left_out = {name for tensors in self.stored.values() for name in tensors.values()}
        left_out |= {name for name in self.in_files if name.rpartition(".")[2] in _OTHER_SCALES}
        shapes = {name: shape for name, shape in self.in_files.items() if name not in left_out}
        return shapes | {weight: self._shape(tensors) for weight, tensors in self.stored.items()}

    def _shape(self, tensors: Mapping[str, str]) -> tuple[int, ...]:
        if "weight_shape" in tensors:
            return tuple(self.read(tensors["weight_shape"]).tolist())
        if own := tensors.keys() & _TRANSPOSED:
            if len(own) < len(_TRANSPOSED):  # MLX has scales beside weights
                raise UnknownCodes(min(tensors.values()))
            (inputs, columns), (_, zeros), (_, outputs) = (self.in_files[tensors[name]] for name in _TRANSPOSED)
            # Words of AWQ hold several outputs, of GPTQ several inputs.
            return (outputs, inputs if columns < outputs else inputs * outputs // zeros)
        *rows, columns = self.in_files.get(tensors.get("weight_packed", tensors.get("weight", "")), (0,))
        in_pairs = "weight_packed" in tensors or "weight_scale_2" in tensors
        return (*rows, columns * 2 if in_pairs else columns)

    def tensor(self, name: str) -> Tensor:
        """One of the tensors, in float32 if it was coded. Raises UnknownCodes, and what reading raises."""
        if name not in self.stored:
            return self.read(name)
        tensors = {own: self.read(full) for own, full in self.stored[name].items()}
        try:
            if "qweight" in tensors:
                # GPTQ's first version stores zero points less 1.
                less = 0 if "gptq_v2" in self._settings.values() else 1
                return _transposed(tensors, self.shapes[name], less)
            return _unpacked(tensors, self.shapes[name], self._block)
        except UnknownCodes:
            raise UnknownCodes(name) from None

    @property
    def _block(self) -> tuple[int, int] | None:
        """Rows and columns that have a scale in common, where the configuration says so."""
        settings = self._settings
        groups = (group.get("weights") or {} for group in (settings.get("config_groups") or {}).values())
        blocks = (settings.get("weight_block_size"), *(group.get("block_structure") for group in groups))
        return next((tuple(block) for block in blocks if block), None)


def _unpacked(tensors: Mapping[str, Tensor], shape: tuple[int, ...], block: tuple[int, int] | None) -> Tensor:
    """The weight of this shape. Raises UnknownCodes."""
    packed, scale = (
        next((tensors[name] for name in names if name in tensors), None)
        for names in (("weight_packed", "weight"), _SCALES)
    )
    if packed is None or scale is None:
        raise UnknownCodes
    # Bytes are exponents of two.
    scale = (scale.float() - 127).exp2() if scale.dtype == torch.uint8 else scale.float()
    scale = scale * tensors.get("weight_scale_2", 1) / tensors.get("weight_global_scale", 1)
    scale = scale.reshape(-1, scale.shape[-1] if scale.dim() > 1 else 1)
    codes, offset = _values(packed, shape), tensors.get("weight_zero_point")
    if offset is not None:
        # Packed from row to row.
        whole = _values(offset.T, (scale.shape[1], shape[0])).T if offset.dtype == torch.int32 else offset.float()
        codes = codes - _spread(whole.reshape(scale.shape), shape, block)
    return codes * _spread(scale, shape, block)


def _transposed(tensors: Mapping[str, Tensor], shape: tuple[int, ...], less: int) -> Tensor:
    """The weight of this shape in GPTQ's files, whose zero points are so much `less`, or AWQ's. Raises UnknownCodes."""
    codes, zeros, scales = (tensors[own] for own in _TRANSPOSED)
    outputs, inputs = shape
    bits, awq = 32 * zeros.shape[1] // outputs, len(codes) == inputs
    groups = tensors.get("g_idx", torch.arange(inputs) // max(inputs // len(scales), 1)).long()
    if codes.dtype != torch.int32 or bits not in ((4,) if awq else (2, 4, 8)) or groups.max() >= len(scales):
        raise UnknownCodes
    if awq:
        places = torch.tensor(_AWQ_ORDER).argsort()
        codes, zeros = (_digits(words, bits).unflatten(1, (-1, 8))[..., places].flatten(1) for words in (codes, zeros))
    else:
        codes, zeros = _digits(codes.T, bits).T, _digits(zeros, bits) + less & 2**bits - 1
    return ((codes - zeros[groups]) * scales.float()[groups]).T


def _digits(words: Tensor, bits: int) -> Tensor:
    """[rows, columns · 32 / bits] int32, from the lowest bits of each word."""
    return (words.unsqueeze(-1) >> torch.arange(0, 32, bits, dtype=torch.int32) & 2**bits - 1).flatten(-2)


def _values(codes: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[rows, columns] float32, what codes stand for. Raises UnknownCodes."""
    columns, packed = shape[-1], codes.shape[-1]
    if codes.dtype == torch.int32 and columns in (8 * packed, 4 * packed):
        bits = 32 * packed // columns
        return (_digits(codes, bits) - 2 ** (bits - 1)).float()
    if codes.dtype == torch.uint8 and columns == 2 * packed:
        pairs = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).int()
        return _FOUR_BITS[pairs & 7] * (1 - 2 * (pairs >> 3))
    if codes.dtype == torch.int8 or (codes.is_floating_point() and codes.dtype.itemsize == 1):
        return codes.float()
    raise UnknownCodes


def _spread(scale: Tensor, shape: tuple[int, ...], block: tuple[int, int] | None) -> Tensor:
    """What is broadcast to the shape, of a number for all weights, for each row, group or block. Raises
    UnknownCodes."""
    for dimension, (size, count) in enumerate(zip(shape, scale.shape, strict=True)):
        if count in (1, size):
            continue
        # How far blocks reach cannot be told from their number where the last one is cut.
        together = block[dimension] if block else size // count if dimension == 1 and size % count == 0 else 0
        if not together or -(-size // together) != count:
            raise UnknownCodes
        scale = scale.repeat_interleave(together, dimension).narrow(dimension, 0, size)
    return scale
