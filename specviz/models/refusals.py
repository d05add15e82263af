"""Turns what the libraries raise over a bad, unreachable or too large model into one sentence a user can act on.

A checkpoint can lead the libraries astray in any way, so whatever they raise while they read one becomes a sentence
with their reason in it; the error itself stays behind it as the cause.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from huggingface_hub import errors as hub
from safetensors import SafetensorError
from transformers import PreTrainedConfig

from specviz.models.placement import release_memory
from specviz.records.errors import SpecvizError, first_line

#: What to say about an error, given a model's name and the field that named it.
About = Callable[[str, str, BaseException], SpecvizError]


@contextlib.contextmanager
def explaining(
    part: str, name: str, field: str, config: PreTrainedConfig | None = None, about: About | None = None
) -> Iterator[None]:
    """Turns what the libraries raise over a bad or unreachable model into a SpecvizError; no memory passes through.

    part: what is being read, ``"configuration"`` or ``"weights"``. name: the model's. field: the parameter that named
    it. config: its configuration, once known. about: of another part, what to say about any error.
    """
    try:
        yield
    except SpecvizError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        about = about or {"configuration": _about_config, "weights": _about_weights}[part]
        raise _refusal(part, name, field, config, error, about) from error


def _refusal(
    part: str, name: str, field: str, config: PreTrainedConfig | None, error: BaseException, about: About
) -> SpecvizError:
    for link in _chain(error):
        refusal = hub_refusal(name, field, link)
        if refusal is not None:
            return refusal
    known = {"name": name, "method": quantisation_name(config), "reason": first_line(error)}
    if isinstance(error, ImportError):
        if not known["method"]:
            # Of a package that lacks another, the other.
            innermost = [link for link in _chain(error) if isinstance(link, ImportError)][-1]
            known["reason"] = first_line(innermost).partition(". ")[0]
            return SpecvizError("{name} needs a package that is not installed: {reason}.", field, **known)
        return SpecvizError(
            "{name} is quantised ({method}) and needs a package that is not installed: {reason}.", field, **known
        )
    if part == "weights" and known["method"] and isinstance(error, (ValueError, RuntimeError)):
        return SpecvizError("{name} is quantised ({method}) and cannot be loaded here: {reason}.", field, **known)
    return about(name, field, error)


def quantisation_of(config: PreTrainedConfig | None) -> Any:
    """The quantisation settings of config.json as they stand there; None if the weights are not quantised."""
    if config is None:
        return None
    places = (config, config.get_text_config(decoder=True))
    found = (getattr(place, "quantization_config", None) for place in places)
    return next((settings for settings in found if settings is not None), None)


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


def _about_config(name: str, field: str, error: BaseException) -> SpecvizError:
    text = str(error)
    if "custom code" in text or "trust_remote_code" in text:
        return SpecvizError(
            "{name} needs code from its own repository, and specviz runs no foreign code.", field, name=name
        )
    if "does not recognize this architecture" in text:
        return SpecvizError("This version of transformers does not know the architecture of {name}.", field, name=name)
    return SpecvizError(
        "transformers cannot use the config.json of {name}: {reason}.",
        field,
        name=name,
        reason=first_line(error),
    )


def _about_weights(name: str, field: str, error: BaseException) -> SpecvizError:
    damaged = (SafetensorError, pickle.UnpicklingError, EOFError, json.JSONDecodeError, KeyError, UnicodeDecodeError)
    text = str(error)
    if isinstance(error, damaged) or "PytorchStreamReader" in text:
        return SpecvizError("The weights of {name} are damaged: download or copy them again.", field, name=name)
    if "ignore_mismatched_sizes" in text:
        return SpecvizError(
            "The weights of {name} do not have the shapes that its config.json promises.", field, name=name
        )
    if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and "no file named" in text.lower()):
        return SpecvizError("{name} has no weights, or not all of them: a weight file is missing.", field, name=name)
    if "automatic conversion" in text:
        return SpecvizError(
            "The weights of {name} are not those that its architecture is put together from: some are missing or have "
            "other shapes.",
            field,
            name=name,
        )
    return SpecvizError("The weights of {name} cannot be read: {reason}.", field, name=name, reason=first_line(error))


def hub_refusal(name: str, field: str, error: BaseException) -> SpecvizError | None:
    """The Hub's refusal as a sentence; None if `error` is not the Hub's."""
    if isinstance(error, hub.GatedRepoError):
        return SpecvizError(
            "{name} is gated: accept its licence at https://huggingface.co/{name} and set HF_TOKEN to a token of "
            "that account.",
            field,
            name=name,
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return SpecvizError(
            "{name} has no such revision on the Hub: use a branch, tag or commit of it.", field, name=name
        )
    if isinstance(error, hub.RepositoryNotFoundError):
        return SpecvizError(
            "There is no model {name} on the Hub; if it is private, set HF_TOKEN to a token that may read it.",
            field,
            name=name,
        )
    if isinstance(error, (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled)):
        return SpecvizError(
            "{name} is not on this machine and the Hub cannot be reached: check the network or name a folder.",
            field,
            name=name,
        )
    if isinstance(error, hub.EntryNotFoundError):
        return SpecvizError(
            "{name} on the Hub is not a model in transformers' format: one of its files is missing. A GGUF file there "
            "is named {name}/FILE.gguf.",
            field,
            name=name,
        )
    if isinstance(error, hub.HfHubHTTPError):
        status = error.response.status_code
        if status == 401:
            return SpecvizError("The Hub did not accept the token for {name}: check HF_TOKEN.", field, name=name)
        return SpecvizError(
            "The Hub answered {status} when asked for {name}: try again in a moment.", field, status=status, name=name
        )
    if isinstance(error, hub.HTTPError):
        return SpecvizError(
            "The connection to the Hub broke while reading {name}: check the network and try again.", field, name=name
        )
    return None


@contextlib.contextmanager
def refusing_out_of_memory(refusal: Callable[[], SpecvizError]) -> Iterator[None]:
    """Turns running out of memory, on a GPU or a CPU, into a SpecvizError; everything else passes through.

    What the failed work held is released first; then `refusal` says what to tell, and may measure.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        _drop_frames(error)
        release_memory()
        raise refusal() from error


#: How libraries without an exception type of their own say it: the CPU allocator, the CUDA runtime, cuBLAS.
_NO_MEMORY = (
    "not enough memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "cudaErrorMemoryAllocation",
    "STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Within a recording the first error says so, and the last only that the recording has failed."""
    return any(
        isinstance(link, (torch.OutOfMemoryError, MemoryError))
        or (isinstance(link, (RuntimeError, OSError)) and any(words in str(link) for words in _NO_MEMORY))
        for link in _chain(error)
    )


def _drop_frames(error: BaseException) -> None:
    """Releases what the frames of the failed work still hold: usually half a model or a cache."""
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
