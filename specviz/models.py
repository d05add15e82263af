"""A target, a draft model and their tokenizer: found, checked, put on a device in a dtype, and refused in a sentence.

Folders are read offline; Hub ids are downloaded. Nothing is loaded before its configuration has been found fit.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import json
import os
import pathlib
import pickle
import re
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub import errors as hub
from huggingface_hub import utils as hub_utils
from jinja2 import TemplateError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from specviz.catalog import in_words, memory_at_hand
from specviz.errors import SpecvizError
from specviz.records import PairInfo, Prompt
from specviz.text import TokenTexts

#: The pair that comes with the repository.
EMBEDDED = pathlib.Path(__file__).resolve().parent.parent / "assets" / "models"

Progress = Callable[[float, str], None]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: The two widths that decide between dtypes: a plain step, and the target pass over four draft tokens.
_TIMED_WIDTHS = (1, 5)

#: Once this long has gone by, no further round of timing is begun.
_TIMING_SECONDS = 1.0

#: No context holds this many characters, and tokenising more would only keep others waiting.
_MAX_PROMPT_CHARACTERS = 4_000_000

_HUB_TIMEOUT_SECONDS = 15.0


# ---------------------------------------------------------------------------------------------------- the pair


@dataclass(eq=False)
class ModelPair:
    """Two models with one vocabulary, ready to run.

    draft: None where only drafters without a model of their own are wanted.
    vocab_size: width of the target's logits; it may exceed the tokenizer's vocabulary, and differ from the draft's.
    context_length: positions that both models have; None if unlimited.
    eos_ids: tokens that end a text.
    pass_seconds: measured while choosing a dtype, dtype name -> tokens per pass -> median seconds of a target pass.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    name: str
    texts: TokenTexts
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    context_length: int | None
    eos_ids: frozenset[int]
    target_name: str
    draft_name: str | None
    pass_seconds: dict[str, dict[int, float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        target: PreTrainedModel,
        draft: PreTrainedModel | None,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        target_name: str = "target",
        draft_name: str = "draft",
        pass_seconds: dict[str, dict[int, float]] | None = None,
    ) -> ModelPair:
        """A pair from models already in memory, on one device and in one dtype. Checks nothing."""
        models = [model for model in (target, draft) if model is not None]
        vocab_size = logit_width(target)
        return cls(
            target=target,
            draft=draft,
            tokenizer=tokenizer,
            name=name or (target_name if draft is None else f"{target_name} + {draft_name}"),
            texts=TokenTexts(tokenizer),
            device=target.device,
            dtype=target.dtype,
            vocab_size=vocab_size,
            context_length=min(filter(None, map(_positions, models)), default=None),
            eos_ids=_eos_ids(target, tokenizer, vocab_size),
            target_name=target_name,
            draft_name=None if draft is None else draft_name,
            pass_seconds=pass_seconds or {},
        )

    @property
    def has_chat_template(self) -> bool:
        return bool(self.tokenizer.chat_template)

    def info(self) -> PairInfo:
        """Names and sizes for the record of a run."""
        return PairInfo(
            name=self.name,
            target=self.target_name,
            target_parameters=self.target.num_parameters(),
            draft=self.draft_name,
            draft_parameters=None if self.draft is None else self.draft.num_parameters(),
            device=str(self.device),
            dtype=_dtype_name(self.dtype),
        )

    def encode(self, prompt: str | Sequence[int], chat: bool = False) -> Prompt:
        """The prompt as the models read it.

        prompt: text, encoded with the tokenizer's own special tokens, or token ids (list, tuple, 1-D tensor).
        chat: put the text into the tokenizer's chat template, as a user's turn that waits for an answer.

        Raises SpecvizError (field ``prompt`` or ``chat``) if it is empty, no valid text or token ids, or leaves no
        room for a single new token in the context.
        """
        if not isinstance(prompt, str):
            if chat:
                raise SpecvizError("The chat template takes a text, not token ids.", "chat")
            ids = self._checked_ids(prompt)
            text = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        else:
            _check_characters(prompt)
            text = self._in_template(prompt) if chat else prompt
            ids = self._tokenise(text, add_special_tokens=not chat)
        self._check_room(len(ids))
        return Prompt(text, ids)

    def free(self) -> None:
        """Give up both models and the memory they held. The pair cannot be used afterwards."""
        self.target = self.draft = None
        _release_memory()

    def _tokenise(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        def encode(special: bool) -> list[int]:
            # verbose=False: the tokenizer would log a warning about long texts, which are refused below anyway.
            return self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]

        ids = encode(add_special_tokens)
        # Special tokens alone are no prompt: they come even with an empty text.
        if not ids or (len(ids) < 4 and not encode(False)):
            raise SpecvizError("Write a prompt first: this one holds no token to start from.", "prompt")
        return tuple(ids)

    def _in_template(self, prompt: str) -> str:
        if not self.has_chat_template:
            raise SpecvizError(
                f"{self.target_name} has no chat template: untick it, and the prompt is continued as it stands.", "chat"
            )
        turn = [{"role": "user", "content": prompt}]
        try:
            return self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise SpecvizError(
                f"The chat template of {self.target_name} cannot be filled in: {_first_line(error)}.", "chat"
            ) from error

    def _checked_ids(self, prompt: Any) -> tuple[int, ...]:
        if isinstance(prompt, (bytes, bytearray)):
            raise SpecvizError("A prompt is a text or a list of token ids, not bytes: decode them first.", "prompt")
        ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
        if not isinstance(ids, (list, tuple)):
            raise SpecvizError(f"A prompt is a text or a list of token ids, not {type(prompt).__name__}.", "prompt")
        if not ids:
            raise SpecvizError("Write a prompt first: the list of token ids is empty.", "prompt")
        width = min(self.vocab_size, self.vocab_size if self.draft is None else logit_width(self.draft))
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise SpecvizError(f"A prompt of token ids holds whole numbers only, not {token_id!r:.80}.", "prompt")
            if not 0 <= token_id < width:
                raise SpecvizError(f"Token id {token_id} does not exist: ids run from 0 to {width - 1}.", "prompt")
        return tuple(ids)

    def _check_room(self, length: int) -> None:
        if self.context_length is not None and length > self.context_length - 1:
            excess = length - (self.context_length - 1)
            raise SpecvizError(
                f"The prompt is {excess:,} token{'s' * (excess > 1)} too long: it has {length:,}, and the models read "
                f"{self.context_length:,} in all, of which at least one must be new.",
                "prompt",
            )


def _check_characters(prompt: str) -> None:
    if not prompt:
        raise SpecvizError("Write a prompt first: there is nothing to continue.", "prompt")
    if len(prompt) > _MAX_PROMPT_CHARACTERS:
        raise SpecvizError(
            f"The prompt has {len(prompt):,} characters; {_MAX_PROMPT_CHARACTERS:,} is the most that is read.", "prompt"
        )
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SpecvizError(
            f"Character {error.start + 1} of the prompt is half of a surrogate pair, which is no character by itself: "
            "remove it or paste the text again.",
            "prompt",
        ) from error


def logit_width(model: PreTrainedModel) -> int:
    """Number of logits in a row of this model's output."""
    head = model.get_output_embeddings()
    return model.config.get_text_config().vocab_size if head is None else head.weight.shape[0]


def _positions(model: PreTrainedModel) -> int | None:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return positions if positions and positions > 0 else None


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> frozenset[int]:
    """Whatever any of the three places that may name an end token says; each holds an int, a list or nothing."""
    named = (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        getattr(model.config.get_text_config(), "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    ids: set[int] = set()
    for value in named:
        ids.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return frozenset(token_id for token_id in ids if 0 <= token_id < vocab_size)


# --------------------------------------------------------------------------------------------------- loading it


def load_pair(
    target: str | os.PathLike[str] | None = None,
    draft: str | os.PathLike[str] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    draft_revision: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> ModelPair:
    """Load a target and, if named, a draft model; with neither, the embedded pair.

    target, draft: local folders in transformers' format, or model ids on the Hugging Face Hub.
    device: ``"auto"`` (CUDA if there is one, else CPU), ``"cpu"``, ``"cuda"``, ``"cuda:1"``.
    dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"auto"``: on CUDA half precision, on a CPU whichever of
        half precision and float32 is measured to be faster there. Both models get the same.
    revision, draft_revision: branch, tag or commit on the Hub. token: for gated or private models; default HF_TOKEN.
    progress: called with a fraction in [0, 1] and a sentence, before each step.

    Raises SpecvizError whose `field` is ``target``, ``draft``, ``device`` or ``dtype``.
    """
    if target is None and draft is not None:
        raise SpecvizError("Name a target too: a draft model alone has nothing to draft for.", "target")
    tell = progress or (lambda fraction, sentence: None)
    place, wanted = _device(device), _dtype(dtype)
    embedded = target is None
    if embedded:
        target, draft = EMBEDDED / "target", EMBEDDED / "draft"
    token = token or os.environ.get("HF_TOKEN") or None
    models: list[PreTrainedModel] = []
    try:
        with _quietly():
            tell(0.0, "Looking for the models.")
            sources = [_find(target, "target", revision, token)]
            if draft is not None:
                sources.append(_find(draft, "draft", draft_revision, token))
            for source in sources:
                source.name = f"storybook {source.field}" if embedded else source.name
                _check_architecture(source)
            tell(0.1, "Reading the tokenizer.")
            tokenizers = [_load_tokenizer(source) for source in sources]
            if len(sources) == 2:
                _check_one_vocabulary(*sources, *tokenizers)
            pass_seconds = _load_models(models, sources, place, wanted, tell)
    except BaseException:
        # The traceback keeps this frame, and through it the models, alive: let go of them by name.
        models.clear()
        _release_memory()
        raise
    tell(1.0, "Ready.")
    return ModelPair.of(
        models[0],
        models[1] if len(models) == 2 else None,
        tokenizers[0],
        name="storybook" if embedded else None,
        target_name=sources[0].name,
        draft_name=sources[-1].name,
        pass_seconds=pass_seconds,
    )


def _load_models(
    models: list[PreTrainedModel],
    sources: list[Source],
    device: torch.device,
    dtype: torch.dtype | None,
    tell: Progress,
) -> dict[str, dict[int, float]]:
    """Appends the models of all sources to `models`; returns the passes timed on the way."""
    target, *drafts = sources
    pass_seconds: dict[str, dict[int, float]] = {}
    _check_memory(sources, device, dtype or _half(device, target))
    tell(0.2, _announce(target))
    if dtype is None and device.type == "cpu" and not target.quantised:
        spare = sum(_weight_bytes(source, torch.float32) for source in drafts)
        model, pass_seconds = _load_faster(target, spare, tell)
        models.append(model)
        del model
    else:
        models.append(_load_weights(target, device, dtype or _half(device, target)))
    for source in drafts:
        tell(0.8, _announce(source))
        models.append(_load_weights(source, device, models[0].dtype))
    return pass_seconds


def _announce(source: Source) -> str:
    size = _weight_bytes(source, source.config.dtype or torch.float32)
    verb = "Loading" if source.options.get("local_files_only") else "Fetching and loading"
    return f"{verb} {source.name}" + (f" ({in_words(size)})." if size else ".")


def _load_faster(
    source: Source, spare_bytes: int, tell: Progress
) -> tuple[PreTrainedModel, dict[str, dict[int, float]]]:
    """The model in half precision or in float32, whichever runs faster on this CPU, and the passes timed.

    Which one wins depends on the processor's instructions, so it is measured. The checkpoint is read once for each
    dtype rather than converted: buffers such as rotary frequencies do not survive a cast. float32 is not tried
    where both copies and `spare_bytes` more would not fit in memory.
    """
    cpu = torch.device("cpu")
    half = _load_weights(source, cpu, _half(cpu, source))
    if _weight_bytes(source, torch.float32) + spare_bytes > memory_at_hand():
        return half, {_dtype_name(half.dtype): time_passes(half, _TIMED_WIDTHS)}
    tell(0.5, f"Timing {source.name} in half and in full precision.")
    full = _load_weights(source, cpu, torch.float32)
    seconds = _time_in_turns([half, full])
    faster = min(seconds, key=lambda name: sum(seconds[name].values()))
    return (full if faster == "float32" else half), seconds


def _time_in_turns(models: Sequence[PreTrainedModel], rounds: int = 3) -> dict[str, dict[int, float]]:
    """`time_passes` of one model after the other, again and again, so that a busy moment falls on each of them.

    The quietest round counts: other processes only ever add time. A slow model is timed in one round.
    """
    measured: dict[str, list[dict[int, float]]] = {_dtype_name(model.dtype): [] for model in models}
    end = time.perf_counter() + _TIMING_SECONDS
    for done in range(rounds):
        if done and time.perf_counter() > end:
            break
        for model in models:
            measured[_dtype_name(model.dtype)].append(time_passes(model, _TIMED_WIDTHS, repeats=5))
    return {
        name: {width: min(passes[width] for passes in taken) for width in _TIMED_WIDTHS}
        for name, taken in measured.items()
    }


def time_passes(
    model: PreTrainedModel, widths: Iterable[int], context: int = 64, repeats: int = 7, budget: float = 1.0
) -> dict[int, float]:
    """Median seconds of one forward pass over K tokens, for each K in `widths`, after `context` cached tokens.

    Warm and synchronised. The widths take turns, so that a busy moment falls on all of them; a model so slow that
    `budget` seconds are over gets fewer than `repeats` measurements, but at least one. The tokens are arbitrary:
    a dense model takes the same time for any.
    """
    widths = sorted(set(widths))
    positions = _positions(model)
    if positions is not None:
        context = max(1, min(context, positions - widths[-1]))
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()
    _timed_pass(model, cache, context)
    for width in widths:
        _timed_pass(model, cache, width, rewind=True)
    measured: dict[int, list[float]] = {width: [] for width in widths}
    end = time.perf_counter() + budget
    for repeat in range(repeats):
        if repeat and time.perf_counter() > end:
            break
        for width in widths:
            measured[width].append(_timed_pass(model, cache, width, rewind=True))
    return {width: statistics.median(times) for width, times in measured.items()}


@torch.inference_mode()
def _timed_pass(model: PreTrainedModel, cache: DynamicCache, width: int, rewind: bool = False) -> float:
    ids = torch.ones(1, width, dtype=torch.long, device=model.device)
    _synchronise(model.device)
    start = time.perf_counter()
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=width if rewind else 1)
    _synchronise(model.device)
    seconds = time.perf_counter() - start
    # Due even when nothing is removed: a sliding window keeps more rows than it needs until it is told.
    cache.crop(-width if rewind else 0)
    return seconds


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ------------------------------------------------------------------------------------------- device and precision


def _device(name: str | torch.device) -> torch.device:
    # Not "mps" by itself, nor when asked for: exact draws need float64, which it does not have.
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise SpecvizError(f"{name!r} is no device: use auto, cpu, cuda or cuda:1.", "device") from error
    if device.type not in ("cpu", "cuda"):
        raise SpecvizError(f"specviz runs on cpu or cuda, not on {device.type}: choose auto.", "device")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SpecvizError("There is no CUDA device that this torch can use: choose cpu or auto.", "device")
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise SpecvizError(f"There is no device {device}: this machine has {count}, counted from 0.", "device")
    return device


def _dtype(name: str | torch.dtype) -> torch.dtype | None:
    """None for auto."""
    if name == "auto":
        return None
    dtype = _DTYPES.get(str(name).removeprefix("torch."))
    if dtype is None:
        raise SpecvizError(f"{name!s} is no dtype to run in: use auto, {', '.join(_DTYPES)}.", "dtype")
    return dtype


def _half(device: torch.device, source: Source) -> torch.dtype:
    """The half precision to run in: on a CPU the checkpoint's own, so that its weights are not rounded again."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.float16 if source.config.dtype == torch.float16 else torch.bfloat16


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------------------- memory


def free_memory(device: torch.device | str = "cpu") -> int:
    """Bytes that can still be taken on the device."""
    device = torch.device(device)
    if device.type != "cuda":
        return memory_at_hand()
    # What torch has reserved and does not use is free to us, though the driver counts it as taken.
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + idle


def _weight_bytes(source: Source, dtype: torch.dtype) -> int:
    """Bytes of the model's weights, counted on an empty shell of it; 0 if unknown (quantised)."""
    return 0 if source.quantised else source.parameters * dtype.itemsize


def _check_memory(sources: Sequence[Source], device: torch.device, dtype: torch.dtype) -> None:
    """Refuses before loading: where memory is overcommitted, running out of it kills the process without a word."""
    free = free_memory(device)
    for source in sources:
        needed = _weight_bytes(source, dtype)
        if needed > free:
            raise SpecvizError(_too_large(source, device, dtype, free), source.field)
        free -= needed


def _too_large(source: Source, device: torch.device, dtype: torch.dtype, free: int) -> str:
    needed = _weight_bytes(source, dtype)
    place = "GPU memory" if device.type == "cuda" else "memory"
    needs = f"needs about {in_words(needed)} of {place} in {_dtype_name(dtype)}"
    advice = "choose a smaller model"
    if dtype == torch.float32:
        advice += f", or half precision, which takes {in_words(needed / 2)}"
    needs = needs if needed else f"does not fit into {place}"
    return f"{source.name} {needs}, and {in_words(free)} are free: {advice}."


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The CPU allocator has no exception type of its own.
    words = ("not enough memory", "can't allocate memory", "Cannot allocate memory", "out of memory")
    return isinstance(error, (RuntimeError, OSError)) and any(word in str(error) for word in words)


def _release_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# ------------------------------------------------------------------------------------------- finding and checking


@dataclass(eq=False)
class Source:
    """Where one model comes from. `field` is the parameter that named it, for the errors."""

    field: str
    name: str
    location: str
    options: dict[str, Any]
    config: PreTrainedConfig | None = None

    @property
    def quantised(self) -> bool:
        return getattr(self.config, "quantization_config", None) is not None

    @functools.cached_property
    def parameters(self) -> int:
        """Counted on a shell without storage, so before anything is downloaded."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(self.config, trust_remote_code=False).num_parameters()


def _find(named: str | os.PathLike[str], field: str, revision: str | None, token: str | None) -> Source:
    """Reads the configuration of a model named by folder or Hub id."""
    name = os.fspath(named).strip()
    folder = pathlib.Path(name).expanduser()
    if not name:
        raise SpecvizError(f"Name a {field} model: a folder or a Hub id such as Qwen/Qwen3-0.6B.", field)
    if folder.is_dir():
        source = Source(field, folder.resolve().name, str(folder), {"local_files_only": True})
        if not (folder / "config.json").is_file():
            raise SpecvizError(f"The folder {name} is no model in transformers' format: no config.json in it.", field)
    elif folder.is_file():
        raise SpecvizError(f"{name} is a file: name the folder that holds config.json and the weights.", field)
    elif isinstance(named, os.PathLike) or name.startswith((".", "~")) or folder.is_absolute() or name.count("/") > 1:
        raise SpecvizError(f"There is no folder {name}.", field)
    else:
        source = Source(field, name, name, _on_the_hub(name, field, revision, token))
    with _explaining(source, "configuration"):
        source.config = AutoConfig.from_pretrained(source.location, trust_remote_code=False, **source.options)
    return source


def _on_the_hub(name: str, field: str, revision: str | None, token: str | None) -> dict[str, Any]:
    """What `from_pretrained` has to be told for this Hub id: one commit for all files, or to use what is cached.

    Asking the Hub once, first, gives its reason for a refusal at once; a download retries for half a minute.
    """
    options = {"revision": revision, "token": token}
    try:
        found = HfApi(token=token).model_info(name, revision=revision, timeout=_HUB_TIMEOUT_SECONDS)
    except hub.HfHubHTTPError as error:
        raise SpecvizError(_hub_sentence(name, error), field) from error
    except hub.HFValidationError as error:
        raise SpecvizError(
            f"{name!r} is neither a folder here nor a Hub id, which reads like Qwen/Qwen3-0.6B.", field
        ) from error
    except (hub.HTTPError, OSError):  # no network, or told to stay offline: an earlier download may be at hand
        return options | {"local_files_only": True}
    return options | {"revision": found.sha or revision}


def _hub_sentence(name: str, error: BaseException) -> str | None:
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


def _check_architecture(source: Source) -> None:
    """Refuses, from the configuration alone, what speculation cannot run."""
    config, name = source.config, source.name
    if config.is_encoder_decoder:
        raise SpecvizError(
            f"{name} is an encoder-decoder ({config.model_type}); specviz runs decoder-only language models.",
            source.field,
        )
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if model_class is None or _is_tuned_for_other_work(config, model_class):
        kind = ", ".join(config.architectures or []) or config.model_type
        raise SpecvizError(f"{name} ({kind}) is not a language model that writes a text token by token.", source.field)
    if not _rewinds(config, model_class):
        raise SpecvizError(
            f"The cache of {name} ({config.model_type}) cannot be rewound, as in Mamba-like models, so rejected draft "
            "tokens could not be taken back.",
            source.field,
        )


def _is_tuned_for_other_work(config: PreTrainedConfig, model_class: type) -> bool:
    """Whether the checkpoint's head is another than the next-token head: an encoder, a classifier."""
    heads = config.architectures or []
    if model_class.__name__ in heads:
        return False
    other_head = re.compile(r"For(?!CausalLM|ConditionalGeneration)[A-Z]")
    return any(map(other_head.search, heads)) or getattr(config, "is_decoder", None) is False


def _rewinds(config: PreTrainedConfig, model_class: type) -> bool:
    if model_class._is_stateful or "past_key_values" not in inspect.signature(model_class.forward).parameters:
        return False
    try:
        return DynamicCache(config=config).is_croppable
    except (AttributeError, KeyError, ValueError):  # layers that DynamicCache has no cache for
        return False


def _load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    with _explaining(source, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.location, trust_remote_code=False, **source.options)
    if not tokenizer.get_vocab():
        raise SpecvizError(f"{source.name} has no tokenizer: its vocabulary is empty.", source.field)
    return tokenizer


def _check_one_vocabulary(
    target: Source, draft: Source, target_tokenizer: PreTrainedTokenizerBase, draft_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Refuses tokenizers of which an id means two things, or of which each has ids that the other lacks.

    The models' logit widths may differ: checkpoints pad them.
    """
    of_target, of_draft = ({i: t for t, i in k.get_vocab().items()} for k in (target_tokenizer, draft_tokenizer))
    shared = of_target.keys() & of_draft.keys()
    nested = len(shared) == min(len(of_target), len(of_draft))
    if not nested or any(of_target[token_id] != of_draft[token_id] for token_id in shared):
        raise SpecvizError(
            f"{draft.name} and {target.name} have different tokenizers: speculation needs one vocabulary, so that a "
            "token id means the same to both.",
            "draft",
        )


# ------------------------------------------------------------------------------------------------ reading weights


def _load_weights(source: Source, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The model in evaluation mode on `device` in `dtype`."""
    options = dict(source.options, dtype=dtype, config=source.config, trust_remote_code=False)
    if device.type == "cuda":
        options["device_map"] = {"": device}  # shard by shard: main memory never holds the whole model
    try:
        with _explaining(source, "weights"):
            model, report = AutoModelForCausalLM.from_pretrained(source.location, output_loading_info=True, **options)
    except (RuntimeError, MemoryError, OSError) as error:
        if not _is_out_of_memory(error):
            raise
        _drop_frames(error)
        _release_memory()
        raise SpecvizError(_too_large(source, device, dtype, free_memory(device)), source.field) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise SpecvizError(
            f"The weights of {source.name} are not complete: {len(missing)} are missing, {missing[0]} among them.",
            source.field,
        )
    return model.eval()


def _drop_frames(error: BaseException) -> None:
    """Lets go of what the frames of a failed load still hold: half a model, usually."""
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)


@contextlib.contextmanager
def _explaining(source: Source, part: str) -> Iterator[None]:
    """Turns what `from_pretrained` raises over a bad or unreachable model into a sentence; bugs pass through."""
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
        sentence = _sentence(source, part, error)
        if sentence is None:
            raise
        raise SpecvizError(sentence, source.field) from error
    except Exception as error:
        # The tokenizers library raises plain Exception, and nothing else does.
        if type(error) is not Exception or part != "tokenizer":
            raise
        raise SpecvizError(f"The tokenizer of {source.name} is damaged: {_first_line(error)}.", source.field) from error


def _sentence(source: Source, part: str, error: BaseException) -> str | None:
    name = source.name
    for link in _chain(error):
        sentence = _hub_sentence(name, link)
        if sentence is not None:
            return sentence
    if _is_out_of_memory(error):
        return None
    kind = f"is quantised ({_quantisation(source.config)}) and " if source.quantised else ""
    if isinstance(error, ImportError):
        return f"{name} {kind}needs a package that is not installed: {_first_line(error)}."
    if part == "weights" and kind and isinstance(error, (ValueError, RuntimeError)):
        return f"{name} {kind}cannot be loaded here: {_first_line(error)}."
    return {"configuration": _about_config, "tokenizer": _about_tokenizer, "weights": _about_weights}[part](name, error)


def _quantisation(config: PreTrainedConfig) -> str:
    settings = config.quantization_config
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
        return f"The weights of {name} cannot be read: {_first_line(error)}."
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")[:200]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silences the libraries' own bars and reports for a while: `progress` tells, and errors are sentences."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    hub_bars = not hub_utils.are_progress_bars_disabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hub_utils.disable_progress_bars()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
        if hub_bars:
            hub_utils.enable_progress_bars()
