"""A loaded model's weights as its files have them, before loading rounded them to the dtype it runs in."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Sequence

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel


class StoredWeights:
    """The tensors in the safetensors files, or the GGUF file, that a model was loaded from; none of a model made in
    memory."""

    def __init__(self, model: PreTrainedModel):
        self.folder = _folder_of(model)
        self._unpacked = None
        if self.folder is not None and self.folder.is_file():
            self._unpacked = _GgufWeights(self.folder, model.config.get_text_config().num_hidden_layers)
        self._files: dict[str, pathlib.Path] = {}  # by the tensor's name there
        for file in () if self.folder is None else sorted(self.folder.glob("model*.safetensors")):
            with safe_open(file, "pt") as opened:
                self._files |= dict.fromkeys(opened.keys(), file)

    @property
    def names(self) -> Collection[str]:
        """What the files call their tensors."""
        return self._files.keys()

    def dtypes(self) -> dict[str, str]:
        """Each tensor's dtype, as safetensors files name it: ``BF16``."""
        found = {}
        for file in set(self._files.values()):
            with safe_open(file, "pt") as opened:
                found |= {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
        return found

    def unrounded(self, names: Sequence[str], loaded: Tensor, rows: Sequence[int] | None = None) -> Tensor:
        """What was rounded to `loaded`, on the CPU: a parameter, or these `rows` of it; in the dtype of the file.

        names: what the model calls the parameter; tied ones have several names, of which the file may know any.
        Files may use other prefixes. Whatever is found must give `loaded` when it is rounded, or `loaded` itself is
        returned: the parameter may have been changed since, or converted.
        """
        if self._unpacked is not None:
            found = (self._unpacked.read(name, rows) for name in names)
            # Gemma's norms are stored with the 1 that its model adds.
            candidates = (weights for one in found if one is not None for weights in (one, one - 1))
            return next((one for one in candidates if torch.equal(one.to(loaded.dtype), loaded)), loaded)
        for name in self._alike(names):
            with safe_open(self._files[name], "pt") as opened:
                part = opened.get_slice(name)
                if rows is not None and max(rows) >= part.get_shape()[0]:
                    continue
                stored = part[:] if rows is None else torch.cat([part[row : row + 1] for row in rows])
            if torch.equal(stored.to(loaded.dtype), loaded):
                return stored
        return loaded

    def _alike(self, names: Sequence[str]) -> list[str]:
        """The files' names that share most of their last components with one of `names`."""
        shared = {stored: max(_shared_components(stored, name) for name in names) for stored in self._files}
        most = max(shared.values(), default=0)
        return [stored for stored, count in shared.items() if count == most > 0]


class _GgufWeights:
    """The tensors of a GGUF file by transformers' names. layers: of the model in it."""

    def __init__(self, file: pathlib.Path, layers: int):
        from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map  # an optional package

        reader = GGUFReader(file)
        kind = reader.get_field("general.architecture").contents()
        self._names = get_tensor_name_map(next(key for key, name in MODEL_ARCH_NAMES.items() if name == kind), layers)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}

    def read(self, name: str, rows: Sequence[int] | None) -> Tensor | None:
        """A tensor, or these `rows` of it, in float32; None if it is not there."""
        from gguf import dequantize

        stem, _, suffix = name.rpartition(".")
        tensor = self._tensors.get(f"{self._names.get_name(stem)}.{suffix}")
        if tensor is None or (rows is not None and max(rows) >= len(tensor.data)):
            return None
        return torch.tensor(dequantize(tensor.data if rows is None else tensor.data[list(rows)], tensor.tensor_type))


def _folder_of(model: PreTrainedModel) -> pathlib.Path | None:
    """Where the files lie, those of a model from the Hub in its cache; of an unpacked GGUF file, the file."""
    if not model.name_or_path:
        return None
    folder = pathlib.Path(model.name_or_path).expanduser()
    commit = getattr(model.config, "_commit_hash", None)
    if folder.is_dir() or commit is None:
        return folder
    config = try_to_load_from_cache(model.name_or_path, "config.json", revision=commit)
    return pathlib.Path(config).parent if isinstance(config, str) else None


def _shared_components(one: str, other: str) -> int:
    """How many components two dotted names share at their ends: 2 for ``model.norm.weight`` and ``norm.weight``."""
    count = 0
    for left, right in zip(reversed(one.split(".")), reversed(other.split("."))):
        if left != right:
            break
        count += 1
    return count
