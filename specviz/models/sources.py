"""Where a model comes from: found by folder or Hub id, its configuration and tokenizer checked, its weights read.

Folders are read offline; Hub ids are downloaded. Nothing is loaded before its configuration has been found fit.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import logging
import math
import os
import pathlib
import re
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub import HfApi
from huggingface_hub import errors as hub
from huggingface_hub import utils as hub_utils
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.distributed import DistributedConfig
from transformers.quantizers import AutoHfQuantizer
from transformers.utils import logging as transformers_logging

from specviz.models.placement import (
    TIMED_WIDTHS,
    Place,
    dtype_name,
    free_at,
    free_memory,
    half_precision,
    multiplies_in,
    room_on_gpus,
    room_to_spread,
    time_in_turns,
    time_passes,
)
from specviz.models.refusals import explaining, hub_refusal, quantisation_name, quantisation_of, refusing_out_of_memory
from specviz.models.vocabularies import Translation, same_vocabulary
from specviz.passes.several_devices import agreed
from specviz.passes.torchrun import process_count
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence, bytes_in_words

#: Told of each step: how far along, in [0, 1], and a sentence.
Progress = Callable[[float, Sentence], None]

_HUB_TIMEOUT_SECONDS = 15.0

#: A draft that has to do with less of its vocabulary than this says next to nothing.
_LEAST_SHARED = 0.01


@dataclass(eq=False)
class ModelSource:
    """Where one model comes from. `field` is the parameter that named it, for the errors."""

    field: str
    name: str
    location: str
    options: dict[str, Any]
    config: PreTrainedConfig | None = None

    @property
    def quantised(self) -> bool:
        return quantisation_of(self.config) is not None

    @functools.cached_property
    def parameters(self) -> int:
        """Counted on a shell without storage, so before anything is downloaded."""
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(self.config, trust_remote_code=False).num_parameters()

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the model's weights, counted on an empty shell of it.

        Of a quantised model, whatever the dtype: of its files, and 0, for unknown, if they are not in a folder here.
        """
        return self._file_bytes if self.quantised else self.parameters * dtype.itemsize

    @functools.cached_property
    def _file_bytes(self) -> int:
        folder = pathlib.Path(self.location).expanduser()
        kinds = ("*.safetensors", "*.bin")
        sizes = ([file.stat().st_size for file in folder.glob(kind)] for kind in kinds)
        # A folder may hold the same weights in both formats; transformers reads the first.
        return next((sum(found) for found in sizes if found), 0)

    def explaining(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Inside it, what goes wrong with reading this `part` of the model is told in a sentence."""
        return explaining(part, self.name, self.field, self.config)


def find_model(named: str | os.PathLike[str], field: str, revision: str | None, token: str | None) -> ModelSource:
    """Reads the configuration of a model named by folder or Hub id."""
    name = os.fspath(named).strip()
    folder = pathlib.Path(name).expanduser()
    if not name:
        raise SpecvizError("Name a model: a folder or a Hub id such as Qwen/Qwen3-0.6B.", field)
    if folder.is_dir():
        source = ModelSource(field, folder.resolve().name, str(folder), {"local_files_only": True})
        if not (folder / "config.json").is_file():
            raise SpecvizError(
                "The folder {name} is no model in transformers' format: no config.json in it.", field, name=name
            )
    elif folder.is_file():
        raise SpecvizError(
            "{name} is a file: name the folder that holds config.json and the weights.", field, name=name
        )
    elif isinstance(named, os.PathLike) or name.startswith((".", "~")) or folder.is_absolute() or name.count("/") > 1:
        raise SpecvizError("There is no folder {name}.", field, name=name)
    else:
        source = ModelSource(field, name, name, _on_the_hub(name, field, revision, token))
    with source.explaining("configuration"):
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
        raise hub_refusal(name, field, error) from error
    except hub.HFValidationError as error:
        raise SpecvizError(
            "{name} is neither a folder here nor a Hub id, which reads like Qwen/Qwen3-0.6B.", field, name=repr(name)
        ) from error
    except (hub.HTTPError, OSError):  # no network, or told to stay offline: an earlier download may be at hand
        return options | {"local_files_only": True}
    return options | {"revision": found.sha or revision}


def check_architecture(source: ModelSource) -> None:
    """Refuses, from the configuration alone, what speculation cannot run."""
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
    """Refuses a quantised model that cannot run here, mostly for want of a package, before any weights are read."""
    settings = quantisation_of(source.config)
    if settings is None:
        return
    with quietly(), source.explaining("weights"):
        # The library's own way to ask; on a copy, because both steps fill in what they find.
        quantiser = AutoHfQuantizer.from_config(copy.deepcopy(settings), pre_quantized=True)
        quantiser.validate_environment(device_map={"": device}, weights_only=True)


def check_sharding(source: ModelSource, processes: int) -> None:
    """Refuses a target that so many processes cannot share."""
    config, known = source.config.get_text_config(), {"name": source.name, "kind": source.config.model_type}
    if source.quantised:
        raise SpecvizError(
            "{name} is quantised ({method}), and quantised weights are not sharded here: leave torchrun out and use "
            "the device spread.",
            "device",
            name=source.name,
            method=quantisation_name(source.config),
        )
    if not config.base_model_tp_plan:
        raise SpecvizError(
            "transformers has no plan by which processes could share {name} ({kind}): leave torchrun out and use the "
            "device spread.",
            "device",
            **known,
        )
    heads = config.num_attention_heads
    of_keys = getattr(config, "num_key_value_heads", None) or heads
    if heads % processes or of_keys % processes:
        raise SpecvizError(
            "{processes} processes cannot share the attention of {name}, which has {heads} heads and {of_keys} of "
            "keys: start as many as divide {divisor}.",
            "device",
            processes=processes,
            name=source.name,
            heads=heads,
            of_keys=of_keys,
            divisor=math.gcd(heads, of_keys),
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


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside the model."""
    with source.explaining("tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source.location, trust_remote_code=False, **source.options)
    if not tokenizer.get_vocab():
        raise SpecvizError("{name} has no tokenizer: its vocabulary is empty.", source.field, name=source.name)
    return tokenizer


def find_translation(
    target: ModelSource,
    draft: ModelSource,
    target_tokenizer: PreTrainedTokenizerBase,
    draft_tokenizer: PreTrainedTokenizerBase,
) -> Translation | None:
    """Between the draft's tokens and the target's; None where one vocabulary serves both.

    The models' logit widths may differ either way: checkpoints pad them. Refuses tokenizers with too little in common.
    """
    if same_vocabulary(target_tokenizer, draft_tokenizer):
        return None
    translation = Translation(target_tokenizer, draft_tokenizer)
    shared, size = len(translation.pairs), translation.draft_size
    if shared < max(1, _LEAST_SHARED * size):
        raise SpecvizError(
            "{draft} and {target} have different tokenizers that share {shared} of the draft's {size} tokens, too few "
            "to draft with: take a draft model whose tokenizer is closer to the target's.",
            "draft",
            draft=draft.name,
            target=target.name,
            shared=shared,
            size=f"{size:,}",
        )
    return translation


def with_room(place: Place, sources: Sequence[ModelSource], dtype: torch.dtype) -> Place:
    """`place`, or all GPUs, if the models are too large for that one and not for all of them together."""
    needed = sum(source.weight_bytes(dtype) for source in sources)
    if place.device.type != "cuda" or needed <= free_memory(place.device):
        return place
    rooms = room_on_gpus()
    return Place(place.device, "spread") if len(rooms) > 1 and needed <= sum(rooms.values()) else place


def check_memory(sources: Sequence[ModelSource], place: Place, dtype: torch.dtype) -> None:
    """Refuses before loading: where memory is overcommitted, running out of it kills the process without a word."""
    free = free_at(place)
    for source in sources:
        needed = _needed_at(place, source, dtype)
        if needed > free:
            raise _too_large(source, needed, place.device, dtype, free)
        free -= needed


def _needed_at(place: Place, source: ModelSource, dtype: torch.dtype) -> int:
    """Bytes of the place's own device, in each process. A spread target takes what the others leave it."""
    needed = source.weight_bytes(dtype)
    if place.way == "whole" or source.field != "target":
        return needed
    return 0 if place.way == "spread" else needed // process_count()


def _too_large(source: ModelSource, needed: int, device: torch.device, dtype: torch.dtype, free: int) -> SpecvizError:
    known = {"name": source.name, "device": device, "free": bytes_in_words(free)}
    if not needed:
        return SpecvizError(
            "{name} does not fit into the memory of {device}, where {free} are free: choose a smaller model.",
            source.field,
            **known,
        )
    known["needed"] = bytes_in_words(needed)
    if source.quantised:
        return SpecvizError(
            "{name} needs about {needed} of memory, and {free} are free on {device}: choose a smaller model.",
            source.field,
            **known,
        )
    known["dtype"] = dtype_name(dtype)
    if dtype != torch.float32:
        return SpecvizError(
            "{name} needs about {needed} of memory in {dtype}, and {free} are free on {device}: choose a smaller "
            "model.",
            source.field,
            **known,
        )
    return SpecvizError(
        "{name} needs about {needed} of memory in {dtype}, and {free} are free on {device}: choose a smaller model, "
        "or half precision, which takes {half}.",
        source.field,
        **known,
        half=bytes_in_words(needed / 2),
    )


def load_weights(source: ModelSource, place: Place, dtype: torch.dtype, kept: int = 0) -> PreTrainedModel:
    """The model in evaluation mode at `place` in `dtype`; a quantised one keeps its own.

    kept: bytes that a spread model leaves free on the place's own device.
    """
    # A quantised checkpoint's scales belong to the dtype it was made in.
    kept_dtype = "auto" if source.quantised else dtype
    options = dict(source.options, dtype=kept_dtype, config=source.config, trust_remote_code=False)
    if place.way == "spread":
        # For weights that are left on disk and cannot be read there as they lie in the checkpoint.
        offloaded = tempfile.TemporaryDirectory(prefix="specviz-", ignore_cleanup_errors=True)
        options |= {"device_map": "auto", "max_memory": room_to_spread(place, kept), "offload_folder": offloaded.name}
    elif place.way == "sharded":
        options["distributed_config"] = DistributedConfig(tp_size=process_count())
    elif place.device.type == "cuda" or source.quantised:
        options["device_map"] = {"": place.device}  # shard by shard: main memory never holds the whole model

    def too_large() -> SpecvizError:
        return _too_large(source, source.weight_bytes(dtype), place.device, dtype, free_memory(place.device))

    with refusing_out_of_memory(too_large), source.explaining("weights"):
        model, report = AutoModelForCausalLM.from_pretrained(source.location, output_loading_info=True, **options)
    missing = sorted(report["missing_keys"])
    if missing:
        raise SpecvizError(
            "The weights of {name} are not complete: {count} are missing, {first} among them.",
            source.field,
            name=source.name,
            count=len(missing),
            first=missing[0],
        )
    if place.way == "spread":
        weakref.finalize(model, offloaded.cleanup)
    return model.eval()


def load_faster(
    source: ModelSource, place: Place, spare_bytes: int, tell: Progress
) -> tuple[PreTrainedModel, dict[str, dict[int, float]]]:
    """The model in half precision or in float32, whichever runs faster on this CPU, and the passes timed.

    Which one wins depends on the processor's instructions, so it is measured where these do not say it. The checkpoint
    is read once for each dtype rather than converted: buffers such as rotary frequencies do not survive a cast. float32
    is not tried where both copies and `spare_bytes` more would not fit in memory.
    """
    half = load_weights(source, place, half_precision(place.device, source.config.dtype))
    too_large = source.weight_bytes(torch.float32) + spare_bytes > agreed(free_memory(place.device), half)
    if multiplies_in(half.dtype) or too_large:
        return half, {dtype_name(half.dtype): time_passes(half, TIMED_WIDTHS)}
    tell(0.5, Sentence("Timing {name} in half and in full precision.", name=source.name))
    full = load_weights(source, place, torch.float32)
    seconds = time_in_turns([half, full])
    faster = min(seconds, key=lambda name: sum(seconds[name].values()))
    return (full if faster == "float32" else half), seconds


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silences the libraries' own bars and reports for a while: `progress` tells, and errors are sentences."""
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
