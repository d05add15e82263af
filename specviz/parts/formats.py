"""What lies in a folder, by its config.json and the names and shapes of its tensors, before any weight is read.

Shapes come first and labels second: published heads call themselves ``LlamaForCausalLM``, or have no label at all.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
from collections.abc import Callable, Iterator
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
    if "kind" in files.settings:
        return None
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


def _is(*labels: str) -> Callable[[PartFiles], bool]:
    """Whether a label is one of these."""
    return lambda files: any(label in labels for label in _labels(files))


def _holds(*endings: str) -> Callable[[PartFiles], bool]:
    """Whether, for each of these endings, a tensor's name is that or ends in it after a dot."""
    return lambda files: all(any(f".{name}".endswith(f".{ending}") for name in files.shapes) for ending in endings)


def _set(*names: str) -> Callable[[PartFiles], bool]:
    """Whether one of these settings is there."""
    return lambda files: files.setting(*names) is not None


def _either(*tests: Callable[[PartFiles], bool]) -> Callable[[PartFiles], bool]:
    return lambda files: any(test(files) for test in tests)


def _fusion(files: PartFiles) -> tuple[int, ...]:
    """The shape of a head's first layer, which joins what it reads; empty if there is none."""
    return next((files.shapes[name] for name in ("fc.weight", "model.fc.weight") if name in files.shapes), ())


def _has_latent_attention(files: PartFiles) -> bool:
    """An EAGLE-3 head with the attention of DeepSeek and Kimi."""
    return _called("eagle3deepseek")(files) or (
        bool(_fusion(files)) and _holds("self_attn.kv_a_proj_with_mqa.weight")(files)
    )


def _is_eagle3(files: PartFiles) -> bool:
    """Attention reads embedding and state side by side, twice as wide as what it writes; or a label says so."""
    ends = ("midlayer.self_attn.", "layers.0.self_attn.")
    read = [shape[-1] for name, shape in files.shapes.items() for end in ends if name.endswith(f"{end}q_proj.weight")]
    written = [shape[0] for name, shape in files.shapes.items() for end in ends if name.endswith(f"{end}o_proj.weight")]
    if read and written and read[0] == 2 * written[0]:
        return True
    return _either(_called("eagle3"), _set("draft_vocab_size"))(files) and not _joins_two(files)


def _joins_two(files: PartFiles) -> bool:
    """A layer that joins the embedding and one state, each as wide as itself."""
    shape = _fusion(files)
    return len(shape) == 2 and shape[1] == 2 * shape[0]


def _is_mtp_alone(files: PartFiles) -> bool:
    """Modules under the names that they have in a target's checkpoint, and nothing else of it."""
    return bool(files.shapes) and all(name.startswith(("mtp.", "model.mtp")) for name in files.shapes)


#: In the order of trial: what is special before what it would be taken for.
FORMATS: tuple[Format, ...] = (
    # As published, their projection lies in a file of its own, which is needed only to read the target's states.
    Format(
        "PARD-2 in training",
        None,
        _holds("target_proj.weight"),
        lambda files: files.complaint(
            "{folder} holds a PARD-2 draft model as it is trained, with the projection of its target's hidden states "
            "among its weights (target_proj): name the folder that was made of it to draft with (pard_model)."
        ),
    ),
    Format(
        "Hydra",
        None,
        _either(_set("hydra_num_heads"), _holds("hydra_lm_head.0.weight")),
        lambda files: files.complaint(
            "{folder} holds Hydra heads, which were published for Vicuna alone and are not run here: name a draft "
            "model, or train a head with python -m specviz.training."
        ),
    ),
    Format(
        "EAGLE-3 with parallel heads",
        None,
        _holds("parallel_draft_heads.0.medusa_layers.0.linear.weight"),
        lambda files: files.complaint(
            "{folder} holds an EAGLE-3 head with further heads for parallel drafting, which are not run here: export "
            "it without them (parallel_draft_step 1), or name another part."
        ),
    ),
    Format(
        "Medusa",
        "medusa",
        _either(
            _set("medusa_num_heads"),
            _called("medusa"),
            _holds("0.0.linear.weight"),
            _holds("blocks.0.layers.0.weight", "lm_heads.0.weight"),
        ),
    ),
    Format(
        "MLP speculator",
        "medusa",
        _either(_called("mlp_speculator", "mlpspeculator"), _holds("emb.0.weight", "proj.0.weight", "head.0.weight")),
    ),
    Format(
        "Gemma 4 assistant",
        "mtp",
        _either(
            _called("gemma4_assistant", "gemma4_unified_assistant"),
            _holds("pre_projection.weight", "post_projection.weight"),
        ),
    ),
    Format("Domino", "parallel", _either(_called("domino"), _holds("prefix_gru.weight_ih_l0"))),
    Format("DFlash2", "parallel", _either(_called("dflash2"), _holds("candidate_selector.hidden_projection.weight"))),
    Format(
        "LiLiCorr",
        None,
        _either(_called("lilicorr"), _set("lilicorr_enabled")),
        lambda files: files.complaint(
            "{folder} holds a LiLiCorr drafter, which weighs all candidates of a block by a transformer of its own, "
            "which is not run here: name a DFlash or DSpark drafter of this target."
        ),
    ),
    Format(
        "DFlare",
        None,
        _either(_called("dflare"), _holds("layer_fusion_weights")),
        lambda files: files.complaint(
            "{folder} holds a DFlare drafter, each of whose layers reads a mixture of its own of the target's layers, "
            "which is not run here: name a DFlash or DSpark drafter of this target."
        ),
    ),
    Format(
        "DSpark on Gemma's layers",
        None,
        _either(_called("gemma4dspark"), _holds("markov_w1.weight", "pre_feedforward_layernorm.weight")),
        lambda files: files.complaint(
            "{folder} holds a DSpark drafter of Gemma 4's own layers, and only those of Qwen 3's layers are run here: "
            "name another drafter of this target."
        ),
    ),
    Format(
        "DSpark in its target",
        None,
        _set("dspark_target_layer_ids"),
        lambda files: files.complaint(
            "{folder} holds a target with a DSpark drafter inside it, as DeepSeek-V4 has it, and only those in folders "
            "of their own are run here: name another drafter."
        ),
    ),
    Format("DSpark", "parallel", _either(_called("dspark"), _holds("markov_w1.weight"), _holds("markov_w2.weight"))),
    Format(
        "DFlash",
        "parallel",
        _either(
            _set("dflash_config"),
            _called("dflash", "muse_glimmer_assistant"),
            lambda files: {"fc.weight", "hidden_norm.weight"} <= files.shapes.keys(),
        ),
    ),
    Format(
        "EAGLE-3 with latent attention",
        None,
        _has_latent_attention,
        lambda files: files.complaint(
            "{folder} holds an EAGLE-3 head with the latent attention of DeepSeek and Kimi, which is not run here: "
            "name one with ordinary attention."
        ),
    ),
    Format("P-EAGLE", "parallel", _either(_called("peagle"), _holds("mask_hidden"))),
    Format("EAGLE-3", "eagle", _is_eagle3),
    Format("EAGLE", "eagle", _either(_joins_two, _is("eagle", "eaglemodel", "eaglellamaforcausallm"))),
    Format(
        "MTP",
        "mtp",
        _either(_is("mtp", "mtpdraftmodel"), lambda files: "mtp_layers.0.input_proj.weight" in files.shapes),
    ),
    Format(
        "MTP modules alone",
        None,
        _either(_called("nextn"), _is_mtp_alone),
        lambda files: files.complaint(
            "{folder} holds multi-token-prediction modules that were taken out of a checkpoint: name that checkpoint "
            "as the target, and its modules are read with it."
        ),
    ),
)
