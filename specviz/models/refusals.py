"""Turns the libraries' errors over a bad, unreachable or too large model into one sentence a user can act on.

A checkpoint can lead the libraries astray in any way, so whatever they raise while they read one becomes a sentence
with their reason in it; the error itself stays behind it as the cause.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub import errors as hub
from safetensors import SafetensorError
from transformers import PreTrainedConfig

from specviz.models.placement import release_memory
from specviz.records.errors import SpecvizError, first_line


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

    part: what is being read, ``"configuration"`` or ``"weights"``. config: the model's, once known. about: for another
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


def _about_config(model: Named, error: BaseException) -> SpecvizError:
    text = str(error)
    if "custom code" in text or "trust_remote_code" in text:
        return model.complaint("{name} needs code from its own repository, and specviz runs no foreign code.")
    if "does not recognize this architecture" in text:
        return model.complaint("This version of transformers does not know the architecture of {name}.")
    return model.complaint("transformers cannot use the config.json of {name}: {reason}.", reason=first_line(error))


def _about_weights(model: Named, error: BaseException) -> SpecvizError:
    damaged = (SafetensorError, pickle.UnpicklingError, EOFError, json.JSONDecodeError, KeyError, UnicodeDecodeError)
    text = str(error)
    if isinstance(error, damaged) or "PytorchStreamReader" in text:
        return model.complaint("The weights of {name} are damaged: download or copy them again.")
    if "ignore_mismatched_sizes" in text:
        return model.complaint("The weights of {name} do not have the shapes that its config.json promises.")
    if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and "no file named" in text.lower()):
        return model.complaint("{name} has no weights, or not all of them: a weight file is missing.")
    if "automatic conversion" in text:
        return model.complaint(
            "The weights of {name} are not those that its architecture is put together from: some are missing or have "
            "other shapes."
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
        return model.complaint("{name} has no such revision on the Hub: use a branch, tag or commit of it.")
    if isinstance(error, hub.RepositoryNotFoundError):
        return model.complaint(
            "There is no model {name} on the Hub; if it is private, set HF_TOKEN to a token that may read it."
        )
    if isinstance(error, (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled)):
        return model.complaint(
            "{name} is not on this machine and the Hub cannot be reached: check the network or name a folder."
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


@contextlib.contextmanager
def refusing_out_of_memory(refusal: Callable[[], SpecvizError]) -> Iterator[None]:
    """Turns running out of memory, on a GPU or a CPU, into a SpecvizError; everything else passes through.

    What the failed work held is released first; then `refusal` makes the sentence, and may measure.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        for link in _chain(error):
            # Their frames still hold what the failed work made: usually half a model or a cache.
            traceback.clear_frames(link.__traceback__)
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
