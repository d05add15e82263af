"""Where a model comes from: a folder, a GGUF file or a Hub id; its configuration, tokenizer and recommended sampling.

Folders are read offline; Hub ids are downloaded. No weights are loaded before the configuration has passed.
"""

import contextlib
import functools
import json
import logging
import os
import pathlib
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub import utils as hub_utils
from tqdm import tqdm
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from specviz.models.gguf_files import GGUF_SAMPLING, explaining_gguf, gguf_at, read_header
from specviz.models.hub import fetched_file, in_hub_cache, is_hub_id, on_the_hub, without_page
from specviz.models.refusals import Named, about_tokenizer, explaining, quantisation_of, try_out, why_not_fetched
from specviz.records.errors import SpecvizError
from specviz.records.files import packing_of
from specviz.records.settings import SamplingParams
from specviz.records.words import Sentence

#: Called at each step with the fraction done, in [0, 1], and a sentence.
Progress = Callable[[float, Sentence], None]

#: Models for other runtimes, and models in the files of those who trained them.
_EXPORTED = ("*.onnx", "onnx/*.onnx", "openvino_model*.xml", "*.mlmodelc", "*.mlpackage", "*.engine", "*.tflite")
_ORIGINAL = ("params.json", "consolidated*", "*.nemo")

#: Of models that see or hear, those whose text model is the same as one that only reads, by another name.
_WITH_TEXT_MODEL = ("gemma3", "gemma3n", "gemma4", "gemma4_unified")

#: Weights that transformers reads, and those that only another library does.
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_ELSEWHERE = ("tf_model*.h5", "flax_model*.msgpack", *_EXPORTED)


@dataclass(eq=False)
class ModelSource(Named):
    """Where one model comes from, and what its configuration says before any weights are read."""

    location: str  # for `from_pretrained`: a folder or a Hub id
    options: dict[str, Any]  # and with it: revision, token, or to stay offline
    config: PreTrainedConfig
    stored: str | None = None  # how a GGUF file stores the weights, which are unpacked
    is_text_part: bool = False  # True if the checkpoint holds more than this, which is its text model
    unpacks: bool = False  # True if quantised weights are unpacked, because this device cannot multiply them
    sampling: dict[str, Any] | None = None  # as the header of a GGUF file recommends it

    def complaint(self, template: str, **values: object) -> SpecvizError:
        """A sentence about this model, in which ``{name}`` is its name and ``{kind}`` its architecture."""
        return super().complaint(template, **{"kind": self.config.model_type} | values)

    @property
    def quantised(self) -> bool:
        return quantisation_of(self.config) is not None

    @property
    def auto_class(self) -> type[AutoModelForCausalLM | AutoModelForImageTextToText]:
        """The class that loads it. A model that also sees pictures is a language model where it is given none."""
        sees = type(self.config) in AutoModelForImageTextToText._model_mapping
        writes = type(self.config) in AutoModelForCausalLM._model_mapping
        return AutoModelForImageTextToText if sees and not writes else AutoModelForCausalLM

    @functools.cached_property
    def parameters(self) -> int:
        """Counted on an empty shell of the model, before anything is downloaded."""
        with self.explaining("configuration"), torch.device("meta"):
            return self.auto_class.from_config(self.config, trust_remote_code=False).num_parameters()

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the loaded weights in `dtype`. A quantised model keeps those of its files, 0 until these are
        fetched; one that is unpacked has its own dtype."""
        if self.quantised and not self.unpacks:
            return self._file_bytes
        return self.parameters * ((self.config.dtype if self.unpacks else None) or dtype).itemsize

    @property
    def unpacking_bytes(self) -> int:
        """Bytes of main memory that unpacking takes temporarily, on top of the weights: transformers makes a few
        copies of each tensor in float32, of which the embeddings are the largest."""
        config = self.config.get_text_config()
        return 0 if self.stored is None else 3 * 4 * config.vocab_size * config.hidden_size

    @functools.cached_property
    def _file_bytes(self) -> int:
        folder = pathlib.Path(os.path.expanduser(self.location))
        sizes = ([file.stat().st_size for file in folder.glob(kind)] for kind in ("*.safetensors", "*.bin"))
        # A folder may hold the same weights in both formats; transformers reads the first.
        return next((sum(of_kind) for of_kind in sizes if of_kind), 0)

    def file(self, name: str) -> pathlib.Path | None:
        """One of the model's files, in its folder or fetched from the Hub; None if it has none of this name."""
        path = cached_file(self.location, name, _raise_exceptions_for_missing_entries=False, **self.options)
        return None if path is None else pathlib.Path(path)

    def explaining(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Within it, whatever goes wrong while reading this `part` of the model becomes a sentence."""
        if self.stored is not None:
            return explaining_gguf(self)
        if part == "tokenizer":
            return explaining(part, self, about=lambda error: about_tokenizer(self, error, self.file))
        return explaining(part, self, self.config)


def find_model(named: str | os.PathLike[str], field: str, revision: str | None, token: str | None) -> ModelSource:
    """Finds a model by folder, GGUF file, Hub id or its page there, and reads its configuration.

    Raises SpecvizError (this `field`).
    """
    named = without_page(named, field)
    name = os.fspath(named).strip()
    if not name:
        raise SpecvizError("Name a model: a folder, a GGUF file or a Hub id such as Qwen/Qwen3-0.6B.", field)
    path = pathlib.Path(os.path.expanduser(name))
    if is_hub_id(named):
        if name.endswith(".gguf"):
            return _gguf_source(fetched_file(name, field, revision, token), field)
        model, location, options = Named(field, name), name, on_the_hub(name, field, revision, token)
    elif file := gguf_at(path, field):
        return _gguf_source(file, field)
    else:
        model, path = _checked_folder(Named(field, name), path)
        location, options = str(path), {"local_files_only": True}
    with explaining("configuration", model):
        config = AutoConfig.from_pretrained(location, trust_remote_code=False, **options)
    source = ModelSource(field, model.name, location, options, config)
    with source.explaining("configuration"):
        # A checkpoint may name attention that only another machine has a package for, and outputs nobody asks for here.
        source.config._attn_implementation = None
        source.config.return_dict = True
        source.config.output_hidden_states = source.config.output_attentions = False
        if not source.quantised:  # whose configuration names layers as the whole has them
            _leave_eyes_and_ears(source)
    return source


def _leave_eyes_and_ears(source: ModelSource) -> None:
    """Leaves of a Gemma that also sees and hears the text model that transformers has for it, all that is run here."""
    config, text = source.config, source.config.get_text_config()
    if config.model_type not in _WITH_TEXT_MODEL or text is config:
        return
    for name in ("architectures", "dtype", "eos_token_id", "tie_word_embeddings", "_commit_hash"):
        if (value := getattr(config, name, None)) is not None:
            setattr(text, name, value)
    text.return_dict, text._attn_implementation = True, None
    source.config, source.is_text_part = text, True


def _gguf_source(file: pathlib.Path, field: str) -> ModelSource:
    name, stored, config, sampling = read_header(file, field)
    # By its whole path: a name alone would first be looked for where the program was started.
    options = {"local_files_only": True, "gguf_file": str(file)}
    return ModelSource(field, name, str(file.parent), options, config, stored, sampling=sampling)


# Folders


def _checked_folder(model: Named, path: pathlib.Path) -> tuple[Named, pathlib.Path]:
    """The folder of the model at `path`, in transformers' format and with its weights, and the model's own name; raises
    SpecvizError for anything else."""
    # What torch saves is a zip file, too.
    if path.is_file() and path.suffix not in (".bin", ".pt", ".pth") and (packing_of(path) or tarfile.is_tarfile(path)):
        raise model.complaint("{name} is packed: unpack it, and name the folder or the GGUF file in it.")
    if path.is_file():
        raise model.complaint(
            "{name} is a file, but not a GGUF file: name the folder that holds config.json and the weights."
        )
    if not path.is_dir() and "://" in model.name:
        raise model.complaint(
            "{name} is an address, and only addresses of model pages at huggingface.co work here. Download the "
            "model, and name the folder or the GGUF file."
        )
    if not path.is_dir():
        raise model.complaint("There is no folder or file {name}.")
    path, name = in_hub_cache(path.resolve(), model.field)
    model = Named(model.field, name)
    if (path / "adapter_config.json").is_file():
        raise model.complaint(
            "The folder {name} holds an adapter (adapter_config.json): merge it into its model (peft's "
            "merge_and_unload), save the result, and name its folder."
        )
    if not (path / "config.json").is_file():
        raise _why_not_a_model(model, path)
    weights = [file for pattern in _WEIGHTS for file in sorted(path.glob(pattern))]
    for file in weights:
        if not_fetched := why_not_fetched(model, file):
            raise not_fetched
    if not weights and (foreign := _first(path, _ELSEWHERE)):
        raise model.complaint(
            "{name} only has weights for another library ({file}): save the model in safetensors, or name "
            "another copy of it.",
            file=foreign.name,
        )
    return model, path


def _why_not_a_model(model: Named, path: pathlib.Path) -> SpecvizError:
    """The sentence for a folder without a config.json, by what else lies there."""
    if below := _first(path, ["*/config.json"]):
        return model.complaint(
            "The folder {name} is not a model itself: name one of the models in it, such as {folder}.",
            folder=below.parent,
        )
    if exported := _first(path, _EXPORTED):
        return model.complaint(
            "{name} is exported for another program ({file}): name the model that it was made from.", file=exported.name
        )
    if original := _first(path, _ORIGINAL):
        return model.complaint(
            "{name} is in its publisher's own format ({file}): name a copy in transformers' format, with config.json.",
            file=original.name,
        )
    if weights := _first(path, _WEIGHTS):
        return model.complaint(
            "{name} holds weights ({file}) without their config.json: copy it and the tokenizer's files into the "
            "same folder.",
            file=weights.name,
        )
    return model.complaint("The folder {name} is not a model in transformers' format: it has no config.json.")


def _first(path: pathlib.Path, patterns: Iterable[str]) -> pathlib.Path | None:
    return next((file for pattern in patterns for file in sorted(path.glob(pattern))), None)


# Files next to the weights


def generation_settings(source: ModelSource) -> dict[str, Any]:
    """The settings in the model's generation_config.json, or in the header of a GGUF file; empty if there are none.

    Read here, because transformers refuses a model for any setting there that it does not know or that contradicts
    another. Raises SpecvizError for a file that is not a JSON object.
    """
    if source.stored is not None:
        return source.sampling or {}
    with source.explaining("configuration"):
        file = source.file("generation_config.json")
    try:
        settings = {} if file is None else json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise source.complaint("The generation_config.json of {name} is damaged: copy it again or remove it.")
    return settings


def recommended_sampling(settings: Mapping[str, Any]) -> SamplingParams | None:
    """The sampling that generation settings recommend, for people to choose and never applied by itself; None if they
    recommend none.

    Settings that are missing, or that no control of ours accepts (a top-k of -1, a text), are off.
    """
    if settings.get("do_sample") not in (None, True):
        return None
    accepted: dict[str, Any] = {}
    for name in GGUF_SAMPLING:
        setting: dict[str, Any] = {name: settings.get(name)}
        with contextlib.suppress(SpecvizError):
            SamplingParams(**setting)
            accepted |= setting
    return SamplingParams(**accepted) if accepted else None


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """The tokenizer next to the model, tried on a text. Raises SpecvizError (the source's field)."""
    with source.explaining("tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.location, trust_remote_code=False, **source.options)
        try_out(tokenizer)
    return tokenizer


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silences the libraries' own bars and reports: `progress` reports the steps, and errors are sentences."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    hub_bars = not hub_utils.are_progress_bars_disabled()
    spreading = logging.getLogger("accelerate")
    level = spreading.level
    spreading.setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hub_utils.disable_progress_bars()
    whole = tqdm.__init__
    # Libraries that unpack weights have bars of their own, which ask for themselves whether to be shown.
    tqdm.__init__ = lambda bar, *arguments, **options: whole(bar, *arguments, **options | {"disable": True})
    try:
        yield
    finally:
        tqdm.__init__ = whole
        transformers_logging.set_verbosity(verbosity)
        spreading.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
        if hub_bars:
            hub_utils.enable_progress_bars()
