"""Turns the libraries' errors over a bad, unreachable or too large model into one sentence a user can act on.

A checkpoint can lead the libraries astray in any way, so any error while they read one becomes a sentence with their
reason in it; the error itself stays behind it as the cause. Of most tokenizers transformers says only that it "couldn't
instantiate the backend tokenizer", so here the files themselves are looked at.
"""

import contextlib
import json
import pathlib
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub import errors as hub
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils.import_utils import is_protobuf_available, is_sentencepiece_available, is_tiktoken_available

from specviz.models.placement import release_memory
from specviz.parts.part_files import is_pointer
from specviz.records.errors import SpecvizError, first_line

#: The packages that read vocabularies in other programs' formats, and how to ask whether each is installed.
PACKAGES = {
    "sentencepiece": is_sentencepiece_available,
    "protobuf": is_protobuf_available,
    "tiktoken": is_tiktoken_available,
}

_TOKENIZER, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_MODELS = tuple(
    f"{stem}.model" for stem in ("tokenizer", "spiece", "sentencepiece.bpe", "sentencepiece", "spm", "tiktoken")
)
_FILES = (_TOKENIZER, _SETTINGS, "config.json", "vocab.json", "merges.txt", "vocab.txt", "tekken.json", *_MODELS)

_TEXT = "A tale é 你 😀"

#: How the CPU allocator, the CUDA runtime and cuBLAS say that memory has run out, without an exception type for it.
_NO_MEMORY = (
    "not enough memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "cudaErrorMemoryAllocation",
    "STATUS_ALLOC_FAILED",
)


@dataclass(eq=False)
class Named:
    """A model by the name that somebody gave it."""

    field: str  # the parameter that named it, for errors: ``target``, ``draft``, ...
    name: str  # for people

    def complaint(self, template: str, **values: object) -> SpecvizError:
        """A sentence about this model, in which ``{name}`` is its name."""
        return SpecvizError(template, self.field, **{"name": self.name} | values)


@contextlib.contextmanager
def explaining(
    part: str,
    model: Named,
    config: PreTrainedConfig | None = None,
    about: Callable[[BaseException], SpecvizError] | None = None,
) -> Iterator[None]:
    """Turns the libraries' errors over a bad or unreachable model into a SpecvizError; out of memory passes through.

    part: the part being read, ``"configuration"`` or ``"weights"``. config: the model's, once known. about: for another
    part, the sentence for any error.
    """
    try:
        yield
    except SpecvizError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        refusals = (hub_refusal(model, link) for link in _chain(error))
        refusal = next(filter(None, refusals), None) or _about_packages(part, model, config, error)
        if refusal is None and about is not None:
            refusal = about(error)
        raise refusal or (_about_weights if part == "weights" else _about_config)(model, error) from error


def _about_packages(
    part: str, model: Named, config: PreTrainedConfig | None, error: BaseException
) -> SpecvizError | None:
    """For a package that is not installed, or weights that are quantised in a way that cannot be read here."""
    method, reason = quantisation_name(config), first_line(error)
    if isinstance(error, ImportError):
        if method:
            return model.complaint(
                "{name} is quantised ({method}) and needs a package that is not installed: {reason}.",
                method=method,
                reason=reason,
            )
        # Where a package lacks another one, name the other.
        innermost = [link for link in _chain(error) if isinstance(link, ImportError)][-1]
        return model.complaint(
            "{name} needs a package that is not installed: {reason}.", reason=first_line(innermost).partition(". ")[0]
        )
    if part == "weights" and method and isinstance(error, (ValueError, RuntimeError)):
        return model.complaint(
            "{name} is quantised ({method}) and cannot be loaded here: {reason}.", method=method, reason=reason
        )
    return None


def quantisation_of(config: PreTrainedConfig | None) -> Any:
    """The quantisation settings of config.json as they stand there; None if the weights are not quantised."""
    places = () if config is None else (config, config.get_text_config(decoder=True))
    candidates = (getattr(place, "quantization_config", None) for place in places)
    return next((settings for settings in candidates if settings is not None), None)


def quantisation_name(config: PreTrainedConfig | None) -> str | None:
    """The method's name, empty if nothing names it; None if the weights are not quantised."""
    settings = quantisation_of(config)
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else settings.quant_method
    if method is None and isinstance(settings, dict):
        # Early bitsandbytes checkpoints do not name it, nor do Apple's.
        method = "bitsandbytes" if {"load_in_4bit", "load_in_8bit"} & settings.keys() else method
        method = "MLX" if settings.keys() >= {"group_size", "bits"} else method
    return str(getattr(method, "value", method or ""))


def _about_config(model: Named, error: BaseException) -> SpecvizError:
    text = str(error)
    if "custom code" in text or "trust_remote_code" in text:
        return model.complaint("{name} needs code from its own repository, and specviz runs no third-party code.")
    if "does not recognize this architecture" in text:
        return model.complaint("This version of transformers does not know the architecture of {name}.")
    return model.complaint("transformers cannot use the config.json of {name}: {reason}.", reason=first_line(error))


def _about_weights(model: Named, error: BaseException) -> SpecvizError:
    damaged = (SafetensorError, pickle.UnpicklingError, EOFError, json.JSONDecodeError, KeyError, UnicodeDecodeError)
    text = str(error)
    if isinstance(error, damaged) or "PytorchStreamReader" in text:
        return model.complaint("The weights of {name} are damaged: download or copy them again.")
    if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and "no file named" in text.lower()):
        return model.complaint("{name} has no weights, or not all of them: a weight file is missing.")
    if "automatic conversion" in text:
        return model.complaint(
            "The weights of {name} do not match its architecture: some are missing or have other shapes."
        )
    return model.complaint("The weights of {name} cannot be read: {reason}.", reason=first_line(error))


def hub_refusal(model: Named, error: BaseException) -> SpecvizError | None:
    """The Hub's refusal as a sentence; None if `error` is not the Hub's."""
    if isinstance(error, hub.GatedRepoError):
        return model.complaint(
            "{name} is gated: accept its licence at https://huggingface.co/{name} and set HF_TOKEN to a token of that "
            "account."
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return model.complaint("{name} has no such revision on the Hub: use one of its branches, tags or commits.")
    if isinstance(error, hub.RepositoryNotFoundError):
        return model.complaint(
            "There is no model {name} on the Hub; if it is private, set HF_TOKEN to a token that may read it."
        )
    if isinstance(error, (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled)):
        return model.complaint(
            "{name} is not on this machine, and the Hub cannot be reached: check the network or name a folder."
        )
    if isinstance(error, hub.EntryNotFoundError):
        return model.complaint(
            "{name} on the Hub is not a model in transformers' format: one of its files is missing. A GGUF file there "
            "is named {name}/FILE.gguf."
        )
    if isinstance(error, hub.HfHubHTTPError) and error.response.status_code == 401:
        return model.complaint("The Hub did not accept the token for {name}: check HF_TOKEN.")
    if isinstance(error, hub.HfHubHTTPError):
        return model.complaint(
            "The Hub answered {status} when asked for {name}: try again in a moment.",
            status=error.response.status_code,
        )
    if isinstance(error, hub.HTTPError):
        return model.complaint("The connection to the Hub broke while reading {name}: check the network and try again.")
    return None


def try_out(tokenizer: PreTrainedTokenizerBase) -> None:
    """Reads a text and writes all tokens, so that a broken one raises now; ValueError if all tokens are special."""
    vocabulary = sorted(set(tokenizer.get_vocab().values()))
    if not set(vocabulary) - set(tokenizer.all_special_ids):
        raise ValueError("it has no tokens but special ones")
    for special in (True, False):
        tokenizer(_TEXT, add_special_tokens=special)
    tokenizer.decode(vocabulary, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def about_tokenizer(model: Named, error: BaseException, find: Callable[[str], pathlib.Path | None]) -> SpecvizError:
    """Why the model's tokenizer cannot be read, by what is in its files.

    find: the path of one of the model's files by its name; None if it has none.
    """
    paths = {file: path for file in _FILES if (path := find(file)) is not None}
    for file, path in paths.items():
        if flaw := _flaw(model, file, path):
            return flaw
    if _SETTINGS in paths and "auto_map" in json.loads(paths[_SETTINGS].read_bytes()):
        return model.complaint(
            "The tokenizer of {name} is code from its repository, and specviz runs no third-party code: remove "
            "auto_map from tokenizer_config.json, and specviz will read a tokenizer.json; if there is none, save "
            "one where you trust the code."
        )
    missing = {file: packages for file, path in paths.items() if (packages := _missing_for(path))}
    if missing and _TOKENIZER not in paths:
        file, packages = missing.popitem()
        return model.complaint(
            "Packages for reading the {file} of {name} are missing: run pip install {packages}, or put a "
            "tokenizer.json next to it.",
            file=file,
            packages=packages,
        )
    if _TOKENIZER not in paths:
        return model.complaint(
            "{name} has no tokenizer.json, and transformers cannot make a tokenizer from {files}: copy the "
            "tokenizer of its original model into its folder.",
            files=", ".join(paths),
        )
    return model.complaint(
        "The tokenizer of {name} cannot be used: {reason}. If its tokenizer.json is correct, set tokenizer_class "
        "in tokenizer_config.json to PreTrainedTokenizerFast.",
        reason=first_line(error),
    )


def why_not_fetched(model: Named, file: pathlib.Path) -> SpecvizError | None:
    """Why a file of the model cannot be read yet; None unless git has left only a pointer to it there."""
    if not is_pointer(file):
        return None
    return model.complaint(
        "{file} in {name} is only a pointer of Git LFS: fetch the file itself with git lfs pull.",
        file=file.name,
    )


def _flaw(model: Named, file: str, path: pathlib.Path) -> SpecvizError | None:
    """Why one file by itself cannot be read; None if it can."""
    if not_fetched := why_not_fetched(model, path):
        return not_fetched
    data = path.read_bytes()
    try:
        if file == _TOKENIZER:
            Tokenizer.from_buffer(data).encode(_TEXT)
        elif file.endswith(".json"):
            json.loads(data).keys()
    except Exception as error:
        # The library raises plain Exception.
        return model.complaint(
            "The {file} of {name} is damaged: copy it again ({reason}).", file=file, reason=first_line(error)
        )
    return None


def _missing_for(path: pathlib.Path) -> str | None:
    """The packages that are missing to read a vocabulary in another program's format."""
    if path.suffix != ".model":
        return None
    # SentencePiece writes protocol buffers; tiktoken a line for each token, its bytes in base64 and its number.
    first = path.read_bytes().partition(b"\n")[0]
    reads = ("tiktoken",) if first.rpartition(b" ")[2].isdigit() else ("sentencepiece", "protobuf")
    return " ".join(package for package in reads if not PACKAGES[package]()) or None


@contextlib.contextmanager
def refusing_out_of_memory(refusal: Callable[[], SpecvizError]) -> Iterator[None]:
    """Turns running out of memory, on a GPU or a CPU, into a SpecvizError; everything else passes through.

    Tensors of the failed work are released first; then `refusal` makes the sentence, and may measure.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        for link in _chain(error):
            # Their frames still hold tensors of the failed work: usually half a model or a cache.
            traceback.clear_frames(link.__traceback__)
        release_memory()
        raise refusal() from error


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error or one of its causes says so: while a graph is recorded only the first one does."""
    return any(
        isinstance(link, (torch.OutOfMemoryError, MemoryError))
        or (isinstance(link, (RuntimeError, OSError)) and any(words in str(link) for words in _NO_MEMORY))
        for link in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
