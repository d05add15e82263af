"""Where a model comes from: a folder or a Hub id, its configuration, its tokenizer, and whether it can run here.

Folders are read offline; Hub ids are downloaded. No weights are loaded before the configuration has passed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
import logging
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub import errors as hub
from huggingface_hub import utils as hub_utils
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.quantizers import AutoHfQuantizer
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from specviz.models.gguf_files import explaining_gguf, gguf_at, read_header
from specviz.models.refusals import explaining, hub_refusal, quantisation_name, quantisation_of
from specviz.records.errors import SpecvizError, quoted
from specviz.records.words import Sentence

#: Called at each step with the fraction done, in [0, 1], and a sentence.
Progress = Callable[[float, Sentence], None]

_HUB_TIMEOUT_SECONDS = 15.0


@dataclass(eq=False)
class ModelSource:
    """Where one model comes from, and what its configuration says before any weights are read."""

    field: str  # the parameter that named it, for errors: ``target``, ``draft``, ...
    name: str  # for people
    location: str  # what `from_pretrained` is given: a folder or a Hub id
    options: dict[str, Any]  # and with it: revision, token, or to stay offline
    config: PreTrainedConfig | None = None
    stored: str | None = None  # how a GGUF file stores the weights, which are unpacked
    sampling: dict[str, Any] | None = None  # as the header of a GGUF file recommends it

    @property
    def quantised(self) -> bool:
        return quantisation_of(self.config) is not None

    @functools.cached_property
    def parameters(self) -> int:
        """Counted on an empty shell of the model, before anything is downloaded."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(self.config, trust_remote_code=False).num_parameters()

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the model's weights in `dtype`; of a quantised model, of its files: 0 until they are here."""
        return self._file_bytes if self.quantised else self.parameters * dtype.itemsize

    @property
    def unpacking_bytes(self) -> int:
        """Bytes of main memory that unpacking takes for a while beside the weights: transformers makes a few copies of
        each tensor in float32, of which the embeddings are the largest."""
        config = self.config.get_text_config()
        return 0 if self.stored is None else 3 * 4 * config.vocab_size * config.hidden_size

    @functools.cached_property
    def _file_bytes(self) -> int:
        folder = pathlib.Path(self.location).expanduser()
        kinds = ("*.safetensors", "*.bin")
        sizes = ([file.stat().st_size for file in folder.glob(kind)] for kind in kinds)
        # A folder may hold the same weights in both formats; transformers reads the first.
        return next((sum(found) for found in sizes if found), 0)

    def explaining(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Within it, whatever goes wrong while reading this `part` of the model becomes a sentence."""
        if self.stored is not None:
            return explaining_gguf(self.name, self.field)
        return explaining(part, self.name, self.field, self.config)


def find_model(named: str | os.PathLike[str], field: str, revision: str | None, token: str | None) -> ModelSource:
    """Finds a model by folder, GGUF file or Hub id, and reads its configuration. Raises SpecvizError (this `field`)."""
    name = os.fspath(named).strip()
    path = pathlib.Path(name).expanduser()
    if not name:
        raise SpecvizError("Name a model: a folder, a GGUF file or a Hub id such as Qwen/Qwen3-0.6B.", field)
    if is_hub_id(named):
        if name.endswith(".gguf"):
            return _gguf_source(_fetched(name, field, revision, token), field)
        source = ModelSource(field, name, name, on_the_hub(name, field, revision, token))
    elif file := gguf_at(path, field):
        return _gguf_source(file, field)
    elif path.is_dir():
        source = ModelSource(field, path.resolve().name, str(path), {"local_files_only": True})
        if (path / "adapter_config.json").is_file():
            raise SpecvizError(
                "The folder {name} holds an adapter (adapter_config.json): merge it into its model (peft's "
                "merge_and_unload), save that, and name the result.",
                field,
                name=name,
            )
        if not (path / "config.json").is_file():
            raise SpecvizError(
                "The folder {name} is not a model in transformers' format: it has no config.json.", field, name=name
            )
    elif path.is_file():
        raise SpecvizError(
            "{name} is a file, but not a GGUF file: name the folder that holds config.json and the weights.",
            field,
            name=name,
        )
    else:
        raise SpecvizError("There is no folder or file {name}.", field, name=name)
    with source.explaining("configuration"):
        source.config = AutoConfig.from_pretrained(source.location, trust_remote_code=False, **source.options)
    return source


def is_hub_id(named: str | os.PathLike[str]) -> bool:
    """Whether a name is no path on this machine and can be one of the Hub's: ``model``, ``org/model``, or
    ``org/model/file.gguf``."""
    name = os.fspath(named).strip()
    path = pathlib.Path(name).expanduser()
    if path.exists() or path.is_absolute() or isinstance(named, os.PathLike) or name.startswith((".", "~")):
        return False
    return name.count("/") >= 2 if name.endswith(".gguf") else name.count("/") <= 1


def _gguf_source(file: pathlib.Path, field: str) -> ModelSource:
    name, stored, config, sampling = read_header(file, field)
    # By its whole path: a name alone would first be looked for where the program was started.
    options = {"local_files_only": True, "gguf_file": str(file)}
    return ModelSource(field, name, str(file.parent), options, config, stored, sampling)


def _fetched(name: str, field: str, revision: str | None, token: str | None) -> pathlib.Path:
    """The file of a repository on the Hub, in the cache: ``org/model/file.gguf``."""
    owner, model, file = name.split("/", 2)
    with explaining("configuration", f"{owner}/{model}", field):
        return pathlib.Path(hf_hub_download(f"{owner}/{model}", file, revision=revision, token=token))


def on_the_hub(name: str, field: str, revision: str | None, token: str | None) -> dict[str, Any]:
    """The options with which `from_pretrained` reads all files of one commit, or only what is cached.

    Asking the Hub once, up front, gets its reason for a refusal at once; a download retries for half a minute.
    """
    options = {"revision": revision, "token": token}
    try:
        found = HfApi(token=token).model_info(name, revision=revision, timeout=_HUB_TIMEOUT_SECONDS)
    except hub.HfHubHTTPError as error:
        raise hub_refusal(name, field, error) from error
    except hub.HFValidationError as error:
        raise SpecvizError(
            "{name} is neither a folder here nor a Hub id like Qwen/Qwen3-0.6B.", field, name=quoted(name)
        ) from error
    except (hub.HTTPError, OSError):  # offline, by choice or not: an earlier download may be cached
        return options | {"local_files_only": True}
    return options | {"revision": found.sha or revision}


def check_architecture(source: ModelSource) -> None:
    """Refuses what speculation cannot run, by its configuration alone."""
    config, name = source.config, source.name
    if config.is_encoder_decoder:
        raise SpecvizError(
            "{name} is an encoder-decoder ({kind}); specviz runs decoder-only language models.",
            source.field,
            name=name,
            kind=config.model_type,
        )
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if model_class is None or _is_tuned_for_other_work(config, model_class):
        kind = ", ".join(config.architectures or []) or config.model_type
        raise SpecvizError(
            "{name} ({kind}) is not a language model that writes a text token by token.",
            source.field,
            name=name,
            kind=kind,
        )
    if not _rewinds(config, model_class):
        raise SpecvizError(
            "The cache of {name} ({kind}) cannot be rewound, as in Mamba-like models, so rejected draft tokens could "
            "not be taken back.",
            source.field,
            name=name,
            kind=config.model_type,
        )


def check_quantisation(source: ModelSource, device: torch.device) -> None:
    """Refuses a quantised model that cannot run here, usually because a package is missing; reads no weights."""
    settings = quantisation_of(source.config)
    if settings is None:
        return
    with quietly(), source.explaining("weights"):
        # The library's own check, on a copy because it fills in what it finds.
        quantiser = AutoHfQuantizer.from_config(copy.deepcopy(settings), pre_quantized=True)
        quantiser.validate_environment(device_map={"": device}, weights_only=True)


def check_sharding(source: ModelSource, processes: int) -> None:
    """Refuses a target that this many processes cannot share."""
    config, known = source.config.get_text_config(), {"name": source.name, "kind": source.config.model_type}
    if source.quantised or source.stored:
        raise SpecvizError(
            "{name} is quantised ({method}), and quantised weights are not sharded here: run without torchrun and "
            "use the device spread.",
            "device",
            name=source.name,
            method=source.stored or quantisation_name(source.config),
        )
    if not config.base_model_tp_plan:
        raise SpecvizError(
            "transformers has no plan for sharing {name} ({kind}) between processes: run without torchrun and use "
            "the device spread.",
            "device",
            **known,
        )
    heads = config.num_attention_heads
    of_keys = getattr(config, "num_key_value_heads", None) or heads
    if heads % processes or of_keys % processes:
        raise SpecvizError(
            "{processes} processes cannot share the attention of {name}, which has {heads} heads and {of_keys} key "
            "heads: start a number that divides {divisor}.",
            "device",
            processes=processes,
            name=source.name,
            heads=heads,
            of_keys=of_keys,
            divisor=math.gcd(heads, of_keys),
        )


def _is_tuned_for_other_work(config: PreTrainedConfig, model_class: type) -> bool:
    """Whether the checkpoint's head predicts something other than the next token: an encoder, a classifier."""
    heads = config.architectures or []
    if model_class.__name__ in heads:
        return False
    other_head = re.compile(r"For(?!CausalLM|ConditionalGeneration)[A-Z]")
    return any(map(other_head.search, heads)) or getattr(config, "is_decoder", None) is False


def _rewinds(config: PreTrainedConfig, model_class: type) -> bool:
    if model_class._is_stateful or "cache" not in inspect.signature(model_class.forward).parameters:
        return False
    try:
        return DynamicCache(config=config).is_croppable
    except (AttributeError, KeyError, ValueError):  # layers for which DynamicCache has no cache
        return False


def generation_settings(source: ModelSource) -> dict[str, Any]:
    """What generation_config.json beside the model says, or the header of a GGUF file; nothing if there is none.

    Read here, because transformers refuses a model for any setting there that it does not know or that contradicts
    another. Raises SpecvizError for a file that is no JSON object.
    """
    if source.stored is not None:
        return source.sampling or {}
    with source.explaining("configuration"):
        options = dict(source.options, _raise_exceptions_for_missing_entries=False)
        file = cached_file(source.location, "generation_config.json", **options)
    try:
        said = {} if file is None else json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise SpecvizError(
            "The generation_config.json of {name} is damaged: copy it again, or take it away.",
            source.field,
            name=source.name,
        )
    return said


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside the model."""
    with source.explaining("tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.location, trust_remote_code=False, **source.options)
    if not tokenizer.get_vocab():
        raise SpecvizError("{name} has no tokenizer: its vocabulary is empty.", source.field, name=source.name)
    return tokenizer


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silences the libraries' own bars and reports: `progress` says what happens, and errors are sentences."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    hub_bars = not hub_utils.are_progress_bars_disabled()
    spreading = logging.getLogger("accelerate")
    level = spreading.level
    spreading.setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hub_utils.disable_progress_bars()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        spreading.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
        if hub_bars:
            hub_utils.enable_progress_bars()
