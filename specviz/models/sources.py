"""Where a model comes from: a folder or a Hub id, its configuration, its tokenizer, and whether it can run here.

Folders are read offline; Hub ids are downloaded. No weights are loaded before the configuration has passed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
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
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from specviz.models.folders import in_hub_cache, refuse_other_formats
from specviz.models.gguf_files import explaining_gguf, gguf_at, read_header
from specviz.models.refusals import explaining, hub_refusal, quantisation_of
from specviz.models.tokenizer_files import about_tokenizer, try_out
from specviz.records.errors import SpecvizError, quoted
from specviz.records.words import Sentence

#: Called at each step with the fraction done, in [0, 1], and a sentence.
Progress = Callable[[float, Sentence], None]

_HUB_TIMEOUT_SECONDS = 15.0

#: A model's page on the Hub, as it is copied from a browser.
_HUB_PAGE = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)(?:/tree/main)?/?$")


@dataclass(eq=False)
class ModelSource:
    """Where one model comes from, and what its configuration says before any weights are read."""

    field: str  # the parameter that named it, for errors: ``target``, ``draft``, ...
    name: str  # for people
    location: str  # what `from_pretrained` is given: a folder or a Hub id
    options: dict[str, Any]  # and with it: revision, token, or to stay offline
    config: PreTrainedConfig | None = None
    stored: str | None = None  # how a GGUF file stores the weights, which are unpacked
    unpacks: bool = False  # whether quantised weights are unpacked on this device, which cannot multiply them
    sampling: dict[str, Any] | None = None  # as the header of a GGUF file recommends it

    @property
    def quantised(self) -> bool:
        return quantisation_of(self.config) is not None

    @property
    def auto_class(self) -> type:
        """What loads it. A model that also sees pictures is a language model where it is given none."""
        sees = type(self.config) in AutoModelForImageTextToText._model_mapping
        writes = type(self.config) in AutoModelForCausalLM._model_mapping
        return AutoModelForImageTextToText if sees and not writes else AutoModelForCausalLM

    @functools.cached_property
    def parameters(self) -> int:
        """Counted on an empty shell of the model, before anything is downloaded."""
        with self.explaining("configuration"), torch.device("meta"):
            return self.auto_class.from_config(self.config, trust_remote_code=False).num_parameters()

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the model's weights in `dtype`, once they are loaded; those of a quantised model stay as in its
        files: 0 until these are here. What it unpacks is in its own dtype."""
        if self.quantised and not self.unpacks:
            return self._file_bytes
        return self.parameters * ((self.config.dtype if self.unpacks else None) or dtype).itemsize

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

    def file(self, name: str) -> pathlib.Path | None:
        """One of the model's files, in its folder or fetched from the Hub; None if it has none of this name."""
        found = cached_file(self.location, name, _raise_exceptions_for_missing_entries=False, **self.options)
        return None if found is None else pathlib.Path(found)

    def explaining(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Within it, whatever goes wrong while reading this `part` of the model becomes a sentence."""
        if self.stored is not None:
            return explaining_gguf(self.name, self.field)
        if part == "tokenizer":
            about = functools.partial(about_tokenizer, find=self.file)
            return explaining(part, self.name, self.field, about=about)
        return explaining(part, self.name, self.field, self.config)


def find_model(named: str | os.PathLike[str], field: str, revision: str | None, token: str | None) -> ModelSource:
    """Finds a model by folder, GGUF file, Hub id or its page there, and reads its configuration.

    Raises SpecvizError (this `field`).
    """
    name = os.fspath(named).strip()
    if not name:
        raise SpecvizError("Name a model: a folder, a GGUF file or a Hub id such as Qwen/Qwen3-0.6B.", field)
    if page := _HUB_PAGE.match(name):
        named = name = page[1]
    path = pathlib.Path(name).expanduser()
    if is_hub_id(named):
        if name.endswith(".gguf"):
            return _gguf_source(_fetched(name, field, revision, token), field)
        source = ModelSource(field, name, name, on_the_hub(name, field, revision, token))
    elif file := gguf_at(path, field):
        return _gguf_source(file, field)
    elif path.is_dir():
        path, name = in_hub_cache(path.resolve(), field)
        refuse_other_formats(path, name, field)
        source = ModelSource(field, name, str(path), {"local_files_only": True})
    elif path.is_file():
        raise SpecvizError(
            "{name} is a file, but not a GGUF file: name the folder that holds config.json and the weights.",
            field,
            name=name,
        )
    elif "://" in name:
        raise SpecvizError(
            "{name} is an address: only pages of models at huggingface.co can be named so. Download it, and name the "
            "folder or the GGUF file.",
            field,
            name=name,
        )
    else:
        raise SpecvizError("There is no folder or file {name}.", field, name=name)
    with source.explaining("configuration"):
        source.config = AutoConfig.from_pretrained(source.location, trust_remote_code=False, **source.options)
        _settle_calls(source.config)
    return source


def _settle_calls(config: PreTrainedConfig) -> None:
    """What a checkpoint says of how it is to be called, which is this program's affair: attention that another machine
    had a package for, outputs that nobody asks for here."""
    config._attn_implementation = None
    config.return_dict, config.output_hidden_states, config.output_attentions = True, False, False


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
    return ModelSource(field, name, str(file.parent), options, config, stored, sampling=sampling)


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


def generation_settings(source: ModelSource) -> dict[str, Any]:
    """What generation_config.json beside the model says, or the header of a GGUF file; nothing if there is none.

    Read here, because transformers refuses a model for any setting there that it does not know or that contradicts
    another. Raises SpecvizError for a file that is no JSON object.
    """
    if source.stored is not None:
        return source.sampling or {}
    with source.explaining("configuration"):
        file = source.file("generation_config.json")
    try:
        said = {} if file is None else json.loads(file.read_text(encoding="utf-8"))
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
    """The tokenizer that lies beside the model, tried on a text. Raises SpecvizError (the source's field)."""
    with source.explaining("tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.location, trust_remote_code=False, **source.options)
        try_out(tokenizer)
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
