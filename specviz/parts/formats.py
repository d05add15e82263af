"""What lies in a folder, by its config.json and the names and shapes of its tensors, before any weight is read.

Shapes come first and labels second: published heads call themselves ``LlamaForCausalLM``, or have no label at all.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specviz.records.errors import SpecvizError, first_line

#: Pickled tensors, as torch saves them: of whole models, and of heads alone.
_PICKLES = ("pytorch_model*.bin", "model*.bin", "*.pt")


@dataclass(frozen=True, eq=False)
class PartFiles:
    """A folder that may hold a trained part. Its weights are read only when they are asked for."""

    folder: pathlib.Path
    settings: dict[str, Any]  # its config.json; empty if there is none that can be read
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of the tensors in the files, by their names

    @classmethod
    def at(cls, folder: pathlib.Path) -> PartFiles:
        """What lies in `folder`. A file that cannot be read has no shapes: `tensors` says why, or whoever loads it as a
        model."""
        files = cls(folder, settings_in(folder))
        for file in files._weights():
            with contextlib.suppress(SpecvizError):
                files.shapes.update(files._shapes_in(file))
        return files

    def setting(self, *names: str, default: Any = None) -> Any:
        """The first of these settings that is there: at the top, or in one of the blocks that formats have for them."""
        blocks = (self.settings.get(block) for block in ("eagle_config", "dflash_config", "transformer_layer_config"))
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
            if tensor.is_floating_point() and not tensor.isfinite().all():
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
        """A sentence about this folder, ``{folder}`` in it."""
        return SpecvizError(template, "draft", **{"folder": self.folder} | values)

    def _weights(self) -> list[pathlib.Path]:
        safe = sorted(self.folder.glob("*.safetensors"))
        return safe or sorted({file for pattern in _PICKLES for file in self.folder.glob(pattern)})

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
        except (OSError, RuntimeError, SafetensorError, EOFError, pickle.UnpicklingError, ValueError) as error:
            values = {"file": file.name, "reason": first_line(error)}
            if isinstance(error, pickle.UnpicklingError) and "weights only" in str(error).lower():
                raise self.complaint(
                    "{file} in {folder} holds code and not weights alone, so it is not read: save its weights as "
                    "safetensors where the code is trusted ({reason}).",
                    **values,
                ) from error
            raise self.complaint(
                "{file} in {folder} is damaged or cut short: copy it again ({reason}).", **values
            ) from error


def settings_in(folder: pathlib.Path) -> dict[str, Any]:
    """The config.json in `folder`; empty if there is none that can be read."""
    try:
        settings = json.loads((folder / "config.json").read_text())
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


@dataclass(frozen=True)
class Format:
    """A form in which trained parts are published."""

    name: str  # for people
    drafter: str | None  # which reads it; None: it does not run here
    fits: Callable[[PartFiles], bool]
    refusal: Callable[[PartFiles], SpecvizError] | None = None  # why it does not run, if that has a reason of its own


def recognise(files: PartFiles) -> Format | None:
    """The format of the part in a folder; None for a model, a part of our own, or nothing that is known."""
    return next((form for form in FORMATS if form.fits(files)), None)


def _labels(files: PartFiles) -> Iterator[str]:
    """What a configuration calls itself."""
    settings = files.settings
    classes = settings.get("architectures")
    for label in (
        *(classes if isinstance(classes, list) else ()),
        settings.get("model_type"),
        settings.get("speculators_model_type"),
        settings.get("spd_type"),
        files.setting("projector_type"),
    ):
        if isinstance(label, str):
            yield label.lower()


def _called(*words: str) -> Callable[[PartFiles], bool]:
    """Whether a label contains one of these words."""
    return lambda files: any(word in label for label in _labels(files) for word in words)


def _holds(*endings: str) -> Callable[[PartFiles], bool]:
    """Whether, for each of these endings, a tensor's name ends in it."""
    return lambda files: all(any(name.endswith(ending) for name in files.shapes) for ending in endings)


def _set(*names: str) -> Callable[[PartFiles], bool]:
    """Whether one of these settings is there."""
    return lambda files: files.setting(*names) is not None


def _either(*tests: Callable[[PartFiles], bool]) -> Callable[[PartFiles], bool]:
    return lambda files: any(test(files) for test in tests)


def _is_eagle3(files: PartFiles) -> bool:
    """Attention reads embedding and state side by side, twice as wide as the head; or a label says so."""
    queries = ("midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight")
    for name, shape in files.shapes.items():
        if name.endswith(queries):
            return shape[-1] == 2 * (files.setting("hidden_size") or 0)
    return _either(_called("eagle3"), _set("draft_vocab_size"))(files)


def _is_eagle(files: PartFiles) -> bool:
    """One layer that joins two inputs and has no norm before attention."""
    joined = next((shape for name, shape in files.shapes.items() if name.endswith("fc.weight")), None)
    return joined is not None and joined[1] == 2 * joined[0] and not _holds("layers.0.input_layernorm.weight")(files)


#: In the order of trial: what is special before what it would be taken for.
FORMATS: tuple[Format, ...] = (
    Format("PARD-2", None, _called("pard2")),
    Format(
        "Hydra",
        None,
        _either(_set("hydra_num_heads"), _holds("hydra_lm_head.0.weight")),
        lambda files: files.complaint(
            "{folder} holds Hydra heads, which were published for Vicuna alone and are not run here: name a draft "
            "model, or train a head with python -m specviz.training."
        ),
    ),
    Format("Medusa", "medusa", _either(_set("medusa_num_heads"), _called("medusa"), _holds("0.0.linear.weight"))),
    Format("MLP speculator", "medusa", _called("mlp_speculator", "mlpspeculator")),
    Format("Gemma 4 assistant", None, _called("gemma4_assistant", "gemma4_unified_assistant")),
    Format("Domino", None, _either(_called("domino"), _holds("prefix_gru.weight_ih_l0"))),
    Format("DFlash2", None, _either(_called("dflash2"), _holds("candidate_selector.hidden_projection.weight"))),
    Format("LiLiCorr", None, _called("lilicorr")),
    Format("DFlare", None, _either(_called("dflare"), _holds("layer_fusion_weights"))),
    Format("DSpark", None, _either(_called("dspark"), _holds("markov_w1.weight"), _holds("markov_w2.weight"))),
    Format("DFlash", "parallel", _either(_set("dflash_config"), _called("dflash", "muse_glimmer_assistant"))),
    Format("P-EAGLE", "parallel", _either(_called("peagle"), _holds("mask_hidden"))),
    Format("EAGLE-3", "eagle", _is_eagle3),
    Format("EAGLE", None, _is_eagle),
)
