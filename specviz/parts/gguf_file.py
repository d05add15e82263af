"""A GGUF file as it is stored: its header, and its tensors by their names there, unpacked by the package `gguf`.

That package's own reader makes an object of every token in the header, a second for each 20,000. transformers' skips
them.
"""

from __future__ import annotations

import importlib.util
import math
import pathlib
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.gguf import reader

#: How a GGUF file begins.
MAGIC = b"GGUF"

#: Kinds of tensors that hold whole numbers.
_WHOLE = {"I32": torch.int32, "I64": torch.int64}


def is_gguf(file: pathlib.Path) -> bool:
    """Whether a file begins like a GGUF file."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(MAGIC)) == MAGIC


def reader_is_missing() -> bool:
    """Whether the package that unpacks GGUF files is not there."""
    return importlib.util.find_spec("gguf") is None


class GgufFile:
    """A GGUF file. Raises whatever its readers do for a damaged one."""

    def __init__(self, file: pathlib.Path):
        self.bytes = reader._mapped(str(file))
        # Of a list of strings, the header says how many there are.
        self.header, count, place = reader._read_metadata(self.bytes, str(file))
        tensors, place = reader._read_tensor_table(self.bytes, count, place)
        self.kind = str(self.header["general.architecture"])
        data = place + -place % self.header.get("general.alignment", 32)
        #: Of each tensor its shape, the number of its kind, and where its data begin.
        self.tensors = {name: (shape, kind, data + offset) for name, shape, kind, offset in tensors}

    def setting(self, key: str) -> Any:
        """Of its architecture; None if the header does not say."""
        return self.header.get(f"{self.kind}.{key}")

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name][0]

    def tensor(self, name: str) -> Tensor:
        """Unpacked, in float32 or int64."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

        shape, number, start = self.tensors[name]
        kind = GGMLQuantizationType(number)
        together, size = GGML_QUANT_SIZES[kind]
        data = self.bytes[start : start + math.prod(shape) // together * size]
        if kind.name in _WHOLE:
            return torch.from_numpy(data.copy()).view(_WHOLE[kind.name]).long().reshape(shape)
        rows = data.reshape(*shape[:-1], -1)
        return torch.from_numpy(dequantize(rows, kind).copy()).float().reshape(shape)
