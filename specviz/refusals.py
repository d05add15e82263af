"""What the libraries raise over a bad, unreachable or too large model, turned into one sentence a person can act on.

Only errors that are known to mean such a thing are turned; bugs pass through as they are.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import traceback
from collections.abc import Callable, Iterator

import torch
from huggingface_hub import errors as hub
from safetensors import SafetensorError
from transformers import PreTrainedConfig

from specviz.errors import SpecvizError
from specviz.placement import release_memory


@contextlib.contextmanager
def explaining(part: str, name: str, field: str, config: PreTrainedConfig | None = None) -> Iterator[None]:
    """Turns what `from_pretrained` raises over a bad or unreachable model into a sentence; bugs pass through.

    part: what is being read, ``"configuration"``, ``"tokenizer"`` or ``"weights"``. name, field: the model's, and the
    parameter that named it. config: its configuration, once that is known.
    """
    try:
        yield
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        ImportError,
        EOFError,
        pickle.UnpicklingError,
        SafetensorError,
        hub.HTTPError,
        hub.StrictDataclassError,
    ) as error:
        sentence = _sentence(part, name, config, error)
        if sentence is None:
            raise
        raise SpecvizError(sentence, field) from error
    except Exception as error:
        # The tokenizers library raises plain Exception, and nothing else does.
        if type(error) is not Exception or part != "tokenizer":
            raise
        raise SpecvizError(f"The tokenizer of {name} is damaged: {first_line(error)}.", field) from error


def _sentence(part: str, name: str, config: PreTrainedConfig | None, error: BaseException) -> str | None:
    for link in _chain(error):
        sentence = hub_sentence(name, link)
        if sentence is not None:
            return sentence
    if _is_out_of_memory(error):
        return None
    method = _quantisation(config)
    kind = f"is quantised ({method}) and " if method else ""
    if isinstance(error, ImportError):
        return f"{name} {kind}needs a package that is not installed: {first_line(error)}."
    if part == "weights" and kind and isinstance(error, (ValueError, RuntimeError)):
        return f"{name} {kind}cannot be loaded here: {first_line(error)}."
    return {"configuration": _about_config, "tokenizer": _about_tokenizer, "weights": _about_weights}[part](name, error)


def _quantisation(config: PreTrainedConfig | None) -> str | None:
    """The name of the method by which the weights are quantised; None if they are not."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else settings.quant_method
    return str(getattr(method, "value", method))


def _about_config(name: str, error: BaseException) -> str | None:
    text = str(error)
    if "custom code" in text or "trust_remote_code" in text:
        return f"{name} needs code from its own repository, and specviz runs no foreign code."
    if "does not recognize this architecture" in text:
        return f"{name} is of a kind that this version of transformers does not know."
    if isinstance(error, (OSError, ValueError, KeyError, TypeError, hub.StrictDataclassError)):
        return f"The config.json of {name} describes no model that transformers can read."
    return None


def _about_tokenizer(name: str, error: BaseException) -> str | None:
    if isinstance(error, (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError)):
        return f"The tokenizer of {name} is damaged: its files cannot be read."
    if isinstance(error, (OSError, ValueError)):
        return f"{name} has no tokenizer, or none that transformers can read."
    return None


def _about_weights(name: str, error: BaseException) -> str | None:
    damaged = (SafetensorError, pickle.UnpicklingError, EOFError, json.JSONDecodeError, KeyError, UnicodeDecodeError)
    text = str(error)
    if isinstance(error, damaged) or "PytorchStreamReader" in text:
        return f"The weights of {name} are damaged: download or copy them again."
    if "ignore_mismatched_sizes" in text:
        return f"The weights of {name} do not have the shapes that its config.json promises."
    if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and "no file named" in text.lower()):
        return f"{name} has no weights, or not all of them: a weight file is missing."
    if isinstance(error, OSError):
        return f"The weights of {name} cannot be read: {first_line(error)}."
    return None


def hub_sentence(name: str, error: BaseException) -> str | None:
    """The Hub's refusal in a sentence; None if `error` is none of the Hub's."""
    if isinstance(error, hub.GatedRepoError):
        return (
            f"{name} is gated: accept its licence at https://huggingface.co/{name} and set HF_TOKEN to a token of "
            "that account."
        )
    if isinstance(error, hub.RevisionNotFoundError):
        return f"{name} has no such revision on the Hub: use a branch, tag or commit of it."
    if isinstance(error, hub.RepositoryNotFoundError):
        return f"There is no model {name} on the Hub; if it is private, set HF_TOKEN to a token that may read it."
    if isinstance(error, (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled)):
        return f"{name} is not on this machine and the Hub cannot be reached: check the network or name a folder."
    if isinstance(error, hub.EntryNotFoundError):
        return f"{name} on the Hub is no model in transformers' format: a file of it is missing."
    if isinstance(error, hub.HfHubHTTPError):
        status = error.response.status_code
        if status == 401:
            return f"The Hub did not accept the token for {name}: check HF_TOKEN."
        return f"The Hub answered {status} when asked for {name}: try again in a moment."
    if isinstance(error, hub.HTTPError):
        return f"The connection to the Hub broke while reading {name}: check the network and try again."
    return None


@contextlib.contextmanager
def refusing_out_of_memory(sentence: Callable[[], str], field: str) -> Iterator[None]:
    """Turns running out of memory, on a GPU or a CPU, into a SpecvizError; everything else passes through.

    What the failed work held is given back first: then `sentence` is asked what to tell, and may measure.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not _is_out_of_memory(error):
            raise
        _drop_frames(error)
        release_memory()
        raise SpecvizError(sentence(), field) from error


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The CPU allocator has no exception type of its own.
    words = ("not enough memory", "can't allocate memory", "Cannot allocate memory", "out of memory")
    return isinstance(error, (RuntimeError, OSError)) and any(word in str(error) for word in words)


def _drop_frames(error: BaseException) -> None:
    """Lets go of what the frames of the failed work still hold: half a model or a cache, usually."""
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first_line(error: BaseException) -> str:
    """What a library said, short enough to be quoted in a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")[:200]
