"""The files of a trained part: its config.json, the names and shapes of its tensors before any weight is read, and the
weights; and sentences about what is wrong with them."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from specviz.records.errors import SpecvizError, first_line

#: Pickled tensors, as torch saves them: of whole models, and of heads alone. Beside them lie what trainers pickle.
PICKLES = ("pytorch_model*.bin", "model*.bin", "*lm_head*.pt")

#: The first of the few lines that git leaves in place of a large file until it is fetched.
_POINTER = b"version https://git-lfs"

#: Parts of a configuration in which formats have settings of their own.
_BLOCKS = ("eagle_config", "dflash_config", "transformer_layer_config", "model")

#: How torch names what a pickle would import.
_CODE = re.compile(r"GLOBAL ([\w.]+)")


@dataclass(frozen=True, eq=False)
class PartFiles:
    """A folder that may hold a trained part. Its weights are read only when they are asked for."""

    folder: pathlib.Path
    settings: dict[str, Any]  # its config.json; empty if there is none that can be read
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the tensors in the files, by their names
    flaw: SpecvizError | None = None  # why one of the files cannot be read; it has no shapes then

    @classmethod
    def at(cls, folder: pathlib.Path) -> PartFiles:
        """What lies in `folder`."""
        files, shapes, flaw = cls(folder, settings_in(folder)), {}, None
        for file in files._weights():
            try:
                shapes |= files._shapes_in(file)
            except SpecvizError as error:
                flaw = error.at("draft")  # without the frames that hold on to it
        return replace(files, shapes=shapes, flaw=flaw)

    def setting(self, *names: str, default: Any = None) -> Any:
        """The first of these settings that is there: at the top, or in one of the blocks that formats have for them."""
        blocks = (
            self.settings.get(block) for block in ("eagle_config", "dflash_config", "transformer_layer_config", "model")
        )
        places = [self.settings, *(block for block in blocks if isinstance(block, dict))]
        found = (place[name] for name in names for place in places if place.get(name) is not None)
        return next(found, default)

    def tensors(self) -> dict[str, Tensor]:
        """All weights by their names, on the CPU.

        Raises SpecvizError (field ``draft``) for damaged files, and for weights that are no numbers.
        """
        tensors: dict[str, Tensor] = {}
        for file in self._weights():
            with self._explaining(file):
                if file.suffix == ".safetensors":
                    with safe_open(file, "pt") as opened:
                        tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
                else:
                    tensors |= _tensors_of(torch.load(file, map_location="cpu", weights_only=True))
        for name, tensor in tensors.items():
            # torch cannot tell of numbers in 8 bits; where they are meant, further tensors scale them.
            wide = tensor.is_floating_point() and tensor.dtype.itemsize > 1
            if wide and not tensor.isfinite().all():
                raise self.complaint("The weights in {folder} are not all numbers ({tensor}).", tensor=name)
        return tensors

    def tensor(self, name: str) -> Tensor:
        """One of the weights by its name, on the CPU. Raises as `tensors`."""
        for file in self._weights():
            if file.suffix == ".safetensors":
                with self._explaining(file), safe_open(file, "pt") as opened:
                    if name in opened.keys():  # noqa: SIM118
                        return opened.get_tensor(name)
        return self.tensors()[name]

    def complaint(self, template: str, **values: object) -> SpecvizError:
        """A sentence about this folder, ``{folder}`` in it: for one in the Hub's cache, the repository's name."""
        repository = self.folder.parent.parent.name
        cached = self.folder.parent.name == "snapshots" and repository.startswith("models--")
        name = repository.removeprefix("models--").replace("--", "/") if cached else self.folder
        return SpecvizError(template, "draft", **{"folder": name} | values)

    def _weights(self) -> list[pathlib.Path]:
        safe = sorted(self.folder.glob("*.safetensors"))
        return safe or sorted({file for pattern in PICKLES for file in self.folder.glob(pattern)})

    def _shapes_in(self, file: pathlib.Path) -> dict[str, tuple[int, ...]]:
        with self._explaining(file):
            if file.suffix == ".safetensors":
                with safe_open(file, "pt") as opened:
                    return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            # Onto a device without memory: of a file in torch's present form only the names and shapes are read.
            held = torch.load(file, map_location="meta", weights_only=True)
            return {name: tuple(tensor.shape) for name, tensor in _tensors_of(held).items()}

    @contextlib.contextmanager
    def _explaining(self, file: pathlib.Path) -> Iterator[None]:
        """Turns the libraries' errors over a file into a sentence."""
        try:
            yield
        except Exception as error:
            # What is no pickle leads the one who reads it astray in any way; torch has more to say than the reason.
            known = {"file": file.name, "reason": first_line(error.__context__ or error)}
            if is_pointer(file):
                raise self.complaint(
                    "{file} in {folder} is only a pointer of Git LFS: fetch the file itself with git lfs pull.", **known
                ) from error
            if code := _CODE.search(str(error)):
                raise self.complaint(
                    "{file} in {folder} holds code and not weights alone ({code}), so it is not read: save its weights "
                    "as safetensors where the code is trusted.",
                    **known | {"code": code[1]},
                ) from error
            raise self.complaint(
                "{file} in {folder} is damaged or cut short: copy it again ({reason}).", **known
            ) from error


def is_pointer(file: pathlib.Path) -> bool:
    """Whether git has left only a pointer to a large file in its place."""
    with file.open("rb") as opened:
        return opened.read(len(_POINTER)) == _POINTER


def settings_in(folder: pathlib.Path) -> dict[str, Any]:
    """The config.json in `folder`; empty if there is none that can be read."""
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _tensors_of(held: Any) -> dict[str, Tensor]:
    """The tensors in what torch saved: a dictionary of them, at times inside another one."""
    if not isinstance(held, dict):
        return {}
    tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    inner = (value for value in held.values() if isinstance(value, dict))
    return tensors or next((found for one in inner if (found := _tensors_of(one))), {})
