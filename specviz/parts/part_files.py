"""The files of a trained part: its config.json, the names and shapes of its tensors before any weight is read, and the
weights; and sentences about what is wrong with them."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from specviz.parts.coded_weights import CodedWeights, UnknownCodes
from specviz.parts.gguf_file import GgufFile, is_gguf, reader_is_missing
from specviz.parts.gguf_modules import GgufModules
from specviz.parts.gguf_parts import GgufPart
from specviz.records.errors import SpecvizError, first_line, quoted

#: Pickled tensors, as torch saves them: of whole models, and of heads alone. Beside them lie what trainers pickle.
PICKLES = ("pytorch_model*.bin", "model*.bin", "*lm_head*.pt")

#: Text that the recipes of earlier versions left beside the weights.
_NO_WEIGHTS = "continuations.safetensors"

#: The first of the few lines that git leaves in place of a large file until it is fetched.
_POINTER = b"version https://git-lfs"

#: Parts of a configuration in which formats have settings of their own.
_BLOCKS = ("eagle_config", "dflash_config", "transformer_layer_config", "model")

#: The most that whole numbers can be, and the least of those that do not start at 1.
_MOST = dict.fromkeys(("n_predict", "num_hidden_layers", "num_nextn_predict_layers", "num_target_layers"), 1024)
_MOST |= dict.fromkeys(("block_size", "num_depths", "para_depths", "pure_draft_prefix_len", "speculative_tokens"), 4096)
_MOST |= dict.fromkeys(("conv_group_size", "conv_kernel_size", "emb_dim", "gru_hidden_dim", "inner_dim"), 2**16)
_MOST |= dict.fromkeys(("hidden_size", "markov_rank", "selector_rank", "selector_top_k", "target_hidden_size"), 2**16)
_MOST |= dict.fromkeys(("mask_token_id", "pard_token", "ptd_token_id", "vocab_size"), 2**24)
_MOST |= dict.fromkeys(("sliding_window", "swa_window_size"), 2**32)
_LEAST = dict.fromkeys(("inner_dim", "markov_rank", "mask_token_id", "pard_token", "ptd_token_id"), 0)
_LEAST |= {"block_size": 2, "pure_draft_prefix_len": 0}

#: Settings that are factors or bounds of numbers, and those that are lists of the target's layers.
_NUMBERS = ("input_embedding_scale", "output_multiplier", "final_logit_softcapping")
_LISTS = ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids", "target_layer_ids")

#: How torch names what a pickle would import.
_CODE = re.compile(r"GLOBAL ([\w.]+)")


@dataclass(frozen=True, eq=False)
class PartFiles:
    """A folder, or a GGUF file, that may hold a trained part. Its weights are read only when they are asked for."""

    folder: pathlib.Path
    settings: dict[str, Any]  # its config.json; empty if there is none that can be read
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the tensors in the files, by their names
    flaw: SpecvizError | None = None  # why one of the files cannot be read; it has no shapes then
    names: Mapping[str, str] | None = None  # those in the files, by the names of `shapes`; None: the same
    packed: GgufPart | GgufModules | CodedWeights | None = None  # what unpacks a GGUF file, or files with codes

    @classmethod
    def at(cls, folder: pathlib.Path, beside_model: bool = False) -> PartFiles:
        """What lies in `folder`, or in the GGUF file of that name: of a model nothing, or, `beside_model`, its MTP
        modules."""
        if is_gguf(folder):
            return cls(folder, {})._unpacked(beside_model)
        files, flaw = cls(folder, settings_in(folder)), None
        shapes: dict[str, tuple[int, ...]] = {}
        for file in files._weights():
            try:
                shapes |= files._shapes_in(file)
            except SpecvizError as error:
                flaw = error.at("draft")  # without the frames that hold on to it
        files = replace(files, shapes=shapes, flaw=flaw)
        return files if flaw is not None else files._decoded()

    def _decoded(self) -> PartFiles:
        """The same files; if some of their weights are codes, unpacked when they are read."""
        coded = CodedWeights(self.shapes, self.settings, self.tensor)
        try:
            with self._explaining(self.folder):
                shapes = coded.shapes
        except SpecvizError as error:
            return replace(self, flaw=error.at("draft"))
        return replace(self, shapes=shapes, packed=coded) if coded.stored else self

    def _unpacked(self, beside_model: bool) -> PartFiles:
        """What the GGUF file holds."""
        if reader_is_missing():
            return self  # said of models and parts alike, where a model is looked for
        flaw = None
        try:
            with self._explaining(self.folder):
                file = GgufFile(self.folder)
                packed: GgufPart | GgufModules = GgufPart(file) if GgufPart.is_in(file) else GgufModules(file)
                if isinstance(packed, GgufModules) and not (packed.alone or (beside_model and packed.count)):
                    return self
                settings, shapes = packed.settings, packed.shapes
        except SpecvizError as error:
            return replace(self, flaw=error.at("draft"))
        if packed.stretches:
            flaw = self.complaint(
                "{folder} scales its positions in a way that is lost when a GGUF file is unpacked: name the part that "
                "it was made from."
            )
        return replace(self, settings=settings, shapes=shapes, packed=packed, flaw=flaw)

    def setting(self, *names: str, default: Any = None) -> Any:
        """The first of these settings that is there: at the top, or in one of the blocks that formats have for them.

        Raises SpecvizError (field ``draft``) for a value that it cannot have.
        """
        places = [self.settings, *(block for block in map(self.settings.get, _BLOCKS) if isinstance(block, dict))]
        values = ((name, place[name]) for name in names for place in places if place.get(name) is not None)
        return self.possible(*next(values, ("", default)))

    def needed(self, *names: str) -> Any:
        """A `setting` that has no default. Raises SpecvizError (field ``draft``) if it is not there."""
        if (value := self.setting(*names)) is None:
            raise self.complaint(
                "The configuration in {folder} lacks {name}, so the part cannot be read.",
                name=names[0],
            )
        return value

    def possible(self, name: str, value: Any) -> Any:
        """The value of a setting. Raises SpecvizError (field ``draft``) if it cannot have that."""
        if not _can_be(name, value):
            raise self.complaint(
                "Invalid {name} in the configuration in {folder}: {value}.",
                name=name,
                value=quoted(value),
            )
        return value

    def named(self, rename: Callable[[str], str | None]) -> PartFiles:
        """The same files with their tensors renamed, less those that are renamed to None."""
        names = {part_name: name for name in self.shapes if (part_name := rename(name)) is not None}
        return replace(self, shapes={part_name: self.shapes[name] for part_name, name in names.items()}, names=names)

    def size(self, name: str, dimension: int) -> int:
        """Of a tensor that has to be there. Raises SpecvizError (field ``draft``) if it lacks the dimension."""
        if len(shape := self.shapes.get(name, ())) <= dimension:
            raise self.complaint("The weights in {folder} lack {tensor}, or some of its dimensions.", tensor=name)
        return shape[dimension]

    def tensors(self) -> dict[str, Tensor]:
        """All weights by the names of `shapes`, on the CPU.

        Raises SpecvizError (field ``draft``) for damaged files, and for weights that are not numbers.
        """
        tensors: dict[str, Tensor] = {}
        if self.packed is not None:
            with self._explaining(self.folder):
                tensors |= {name: self.packed.tensor(name) for name in self.packed.shapes}
        for file in self._weights() if self.packed is None else ():
            with self._explaining(file):
                if file.suffix == ".safetensors":
                    with safe_open(file, "pt") as opened:
                        tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
                else:
                    tensors |= _tensors_of(torch.load(file, map_location="cpu", weights_only=True))
        for name, tensor in tensors.items():
            # torch cannot tell of numbers in 8 bits, which no part has once it is unpacked.
            wide = tensor.is_floating_point() and tensor.dtype.itemsize > 1
            if wide and not tensor.isfinite().all():
                raise self.complaint("The weights in {folder} contain NaN or infinite values ({tensor}).", tensor=name)
        return tensors if self.names is None else {part_name: tensors[name] for part_name, name in self.names.items()}

    def tensor(self, name: str) -> Tensor:
        """One of the weights by its name, on the CPU. Raises as `tensors`."""
        stored = name if self.names is None else self.names[name]
        if self.packed is not None:
            with self._explaining(self.folder):
                return self.packed.tensor(stored)
        for file in self._weights():
            if file.suffix == ".safetensors":
                with self._explaining(file), safe_open(file, "pt") as opened:
                    if stored in opened.keys():  # noqa: SIM118
                        return opened.get_tensor(stored)
        return self.tensors()[name]

    def complaint(self, template: str, **values: object) -> SpecvizError:
        """A sentence about this folder, ``{folder}`` in it: for one in the Hub's cache, the repository's name."""
        repository = self.folder.parent.parent.name
        cached = self.folder.parent.name == "snapshots" and repository.startswith("models--")
        name = repository.removeprefix("models--").replace("--", "/") if cached else self.folder
        return SpecvizError(template, "draft", **{"folder": name} | values)

    def _weights(self) -> list[pathlib.Path]:
        weights = [file for file in self._those("*.safetensors") if file.name != _NO_WEIGHTS]
        return weights or self._those(*PICKLES)

    def _those(self, *patterns: str) -> list[pathlib.Path]:
        return sorted({file for pattern in patterns for file in self.folder.glob(pattern) if file.is_file()})

    def _shapes_in(self, file: pathlib.Path) -> dict[str, tuple[int, ...]]:
        with self._explaining(file):
            if file.suffix == ".safetensors":
                with safe_open(file, "pt") as opened:
                    return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            # Onto a device without memory: of a file in torch's present form only the names and shapes are read.
            saved = torch.load(file, map_location="meta", weights_only=True)
            return {name: tuple(tensor.shape) for name, tensor in _tensors_of(saved).items()}

    @contextlib.contextmanager
    def _explaining(self, file: pathlib.Path) -> Iterator[None]:
        """Turns the libraries' errors over a file into a sentence."""
        try:
            yield
        except SpecvizError:
            raise
        except Exception as error:
            # Damaged pickles fail in any way; of torch's message only the reason is wanted.
            facts = {"file": file.name, "reason": first_line(error.__context__ or error)}
            if isinstance(error, UnknownCodes):
                raise self.complaint(
                    "The part in {folder} is quantised in a way that is not unpacked here ({tensor}): name the part "
                    "that it was made from.",
                    tensor=str(error),
                ) from error
            if isinstance(error, NotImplementedError):
                raise self.complaint(
                    "{file} has weights in codes that the package gguf cannot unpack: name the file in another "
                    "quantisation, such as Q8_0 ({reason}).",
                    **facts,
                ) from error
            if is_pointer(file):
                raise self.complaint(
                    "{file} in {folder} is only a pointer of Git LFS: fetch the file itself with git lfs pull.", **facts
                ) from error
            if code := _CODE.search(str(error)):
                raise self.complaint(
                    "{file} in {folder} contains code as well as weights ({code}), so it is not read: save its "
                    "weights as safetensors where you trust the code.",
                    **facts | {"code": code[1]},
                ) from error
            raise self.complaint(
                "{file} in {folder} is damaged or cut short: copy it again ({reason}).", **facts
            ) from error


def is_pointer(file: pathlib.Path) -> bool:
    """Whether git has left only a pointer to a large file in its place."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(len(_POINTER)) == _POINTER


def _can_be(name: str, value: Any) -> bool:
    if value is None:
        return True
    is_integer, is_number = (isinstance(value, kind) and not isinstance(value, bool) for kind in (int, (int, float)))
    if name in _MOST:
        return is_integer and _LEAST.get(name, 1) <= value <= _MOST[name]
    if name in _NUMBERS:
        return is_number and math.isfinite(value)
    if name in _LISTS:
        return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
    return True


def settings_in(folder: pathlib.Path) -> dict[str, Any]:
    """The config.json in `folder`; empty if there is none that can be read."""
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _tensors_of(saved: Any) -> dict[str, Tensor]:
    """The tensors in what torch saved: a dictionary of them, at times inside another one."""
    if not isinstance(saved, dict):
        return {}
    tensors = {name: value for name, value in saved.items() if isinstance(name, str) and isinstance(value, Tensor)}
    inner = (value for value in saved.values() if isinstance(value, dict))
    return tensors or next((nested for value in inner if (nested := _tensors_of(value))), {})
