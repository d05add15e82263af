"""A model's weights: the precision they run in, whether they fit, and reading them."""

import contextlib
import os
import pathlib
import re
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import safe_open
from transformers import GenerationConfig, PreTrainedModel, modeling_utils
from transformers.utils.quantization_config import GgufConfig

from specviz.models.checks import try_model
from specviz.models.gguf_files import in_few_bits
from specviz.models.placement import Place, automatic_dtype, free_memory, room_on_gpus, room_to_spread
from specviz.models.refusals import refusing_out_of_memory
from specviz.models.sources import ModelSource, generation_settings
from specviz.passes.model_twins import align
from specviz.records.errors import SpecvizError
from specviz.records.words import Bytes


def with_room(place: Place, sources: Sequence[ModelSource], dtype: torch.dtype) -> Place:
    """`place`, or all GPUs if the models are too large for one but not for all of them together."""
    needed = sum(source.weight_bytes(dtype) for source in sources)
    if place.device.type != "cuda" or needed <= free_memory(place.device):
        return place
    rooms = room_on_gpus()
    return Place(place.device, spread=True) if len(rooms) > 1 and needed <= sum(rooms.values()) else place


def choose_dtype(device: torch.device, sources: Sequence[ModelSource]) -> torch.dtype:
    """The dtype that ``auto`` stands for, for these models on this device. A draft follows its target, the first."""
    full = sum(source.weight_bytes(torch.float32) for source in sources)
    return automatic_dtype(device, sources[0].config.dtype, full, in_few_bits(sources[0].stored))


def check_memory(sources: Sequence[ModelSource], place: Place, dtype: torch.dtype) -> None:
    """Raises SpecvizError for models that do not fit, before they are loaded: where memory is overcommitted, running
    out just kills the process."""
    free = free_memory(place.device)
    for source in sources:
        needed = _needed_at(place, source, dtype)
        most = needed + (source.unpacking_bytes if place.device.type == "cpu" else 0)
        if most > free:
            raise _too_large(source, most, place.device, dtype, free)
        free -= needed


def _needed_at(place: Place, source: ModelSource, dtype: torch.dtype) -> int:
    """Bytes on the place's own device. A spread target takes the room that the draft leaves."""
    return 0 if place.spread and source.field == "target" else source.weight_bytes(dtype)


def _too_large(source: ModelSource, needed: int, device: torch.device, dtype: torch.dtype, free: int) -> SpecvizError:
    values = {"device": device, "free": Bytes(free), "needed": Bytes(needed)}
    if not needed:
        return source.complaint(
            "{name} does not fit into the memory of {device}, where only {free} are free: choose a smaller model.",
            **values,
        )
    if source.quantised or dtype != torch.float32:
        return source.complaint(
            "{name} needs about {needed} of memory, but only {free} are free on {device}: choose a smaller model.",
            **values,
        )
    return source.complaint(
        "{name} needs about {needed} of memory in float32, but only {free} are free on {device}: choose a "
        "smaller model, or half precision, which takes {half}.",
        **values,
        half=Bytes(needed / 2),
    )


def load_weights(source: ModelSource, place: Place, dtype: torch.dtype, spare: int = 0) -> PreTrainedModel:
    """The model at `place`, in evaluation mode and in `dtype`; a quantised one keeps its own dtype.

    spare: bytes that a spread model leaves free on the place's own device.
    """
    # A quantised checkpoint's scales belong to the dtype it was made in.
    kept_dtype = "auto" if source.quantised else dtype
    options = dict(source.options, dtype=kept_dtype, config=source.config, trust_remote_code=False)
    # Only the end tokens of its own settings: `generate` would fill in the others.
    options["ignore_mismatched_sizes"] = True  # they are refused by name below
    options["generation_config"] = GenerationConfig(eos_token_id=generation_settings(source).get("eos_token_id"))
    if source.is_text_part:
        options["key_mapping"] = _TEXT_PART_NAMES
    if source.stored is not None:
        options["quantization_config"] = GgufConfig(dequantize=True)
    read_to = torch.device("cpu") if place.lent else place.device  # transformers reads weights in threads of its own
    if place.spread:
        # For weights that stay on disk but cannot be read straight from the checkpoint.
        offloaded = tempfile.TemporaryDirectory(prefix="specviz-", ignore_cleanup_errors=True)
        options |= {"device_map": "auto", "max_memory": room_to_spread(place, spare), "offload_folder": offloaded.name}
    elif read_to.type == "cuda" or source.quantised:
        options["device_map"] = {"": read_to}  # shard by shard: main memory never holds the whole model

    def too_large() -> SpecvizError:
        return _too_large(source, source.weight_bytes(dtype), place.device, dtype, free_memory(place.device))

    stays_on_cpu = read_to.type == "cpu" and not source.quantised and not place.spread
    reading = unmapped() if stays_on_cpu else contextlib.nullcontext()
    with refusing_out_of_memory(too_large), source.explaining("weights"), reading:
        _refuse_empty(source)
        model, report = source.auto_class.from_pretrained(source.location, output_loading_info=True, **options)
        if stays_on_cpu:
            align(model)
    _refuse_another_model(source, model, report)
    if place.lent:
        # Before it is moved: until the GPU is there nothing can be tried on it.
        try_model(model, source)
        with refusing_out_of_memory(too_large):
            model.to(place.device)
    if source.stored is not None:
        # An ordinary model from here on, but its name is the file, so that it is found again.
        model.config.name_or_path = model.name_or_path = source.options["gguf_file"]
        model.config.__dict__.pop("quantization_config", None)
    if place.spread:
        weakref.finalize(model, offloaded.cleanup)
    return model.eval()


#: How names of weights begin where a text model is one of several, and what they are called in it alone.
_TEXT_PART_NAMES = {r"^language_model\.": "", r"^model\.language_model\.": "model."}

#: Weights without a place in the architecture whose absence does not change its results, and why.
_HARMLESS = re.compile(
    r"(^|\.)rotary_emb\.(cos|sin)_cached$"  # computed from the configuration
    r"|(attn|attention)\.(bias|masked_bias|causal_mask)$"  # the causal mask, which some stored; a projection has a name
    # The parts for pictures and sounds of a model that is given none.
    r"|(^|\.)(vision_(tower|model|encoder)|visual|audio_(tower|model|encoder)|(multi_?modal|mm|vision|audio)_projector"
    r"|embed_(vision|audio)|vision_embedder|connector|image_newline)\."
    r"|(^|\.)mtp(_|\.)"  # multi-token-prediction modules, which are a drafter (`trained_parts`)
    r"|(^|\.)v_head\."  # the value of a state, for reinforcement learning
)

#: What peft adds to a model, until it is merged.
_ADAPTER = re.compile(r"(^|\.)(lora_[AB]|lora_embedding_[AB]|base_layer|modules_to_save|base_model\.model)(\.|$)")

#: The dtypes in which weights are stored unless they are quantised, by their names in safetensors.
_STORED = {"F64", "F32", "F16", "BF16"}


def _refuse_another_model(source: ModelSource, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Raises SpecvizError for weights that are not this architecture's: some are missing, left over, or codes for
    other numbers."""
    adapters = sorted(key for key in report["unexpected_keys"] if _ADAPTER.search(key))
    if adapters:
        raise source.complaint(
            "{name} still has an adapter in it ({first}): merge it (peft's merge_and_unload), save the result, and "
            "name its folder.",
            first=adapters[0],
        )
    for tensor, found, wanted in sorted(report["mismatched_keys"]):
        raise source.complaint(
            "{tensor} in {name} has the shape {found}, but its config.json promises {wanted}.",
            tensor=tensor,
            found=list(found),
            wanted=list(wanted),
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise source.complaint(
            "The weights of {name} are incomplete: {count} are missing, among them {first}.",
            count=len(missing),
            first=missing[0],
        )
    config = source.config.get_text_config()
    first = config.num_hidden_layers
    modules = getattr(config, "num_mtp_layers", None) or getattr(config, "num_nextn_predict_layers", None) or 0
    further = tuple(f"layers.{layer}." for layer in range(first, first + modules))
    over = [
        key
        for key in sorted(report["unexpected_keys"])
        if not _HARMLESS.search(key) and not any(part in key for part in further)
    ]
    if over:
        raise source.complaint(
            "{name} holds weights that its architecture ({kind}) has no place for, such as {first} ({count} in "
            "all): its config.json does not describe this checkpoint.",
            count=len(over),
            kind=config.model_type,
            first=over[0],
        )
    stored = {} if source.quantised or source.stored else stored_dtypes(model)
    names = {name.rpartition("layers.")[2] for name, _ in model.named_parameters()}
    for name, dtype in stored.items():
        if dtype not in _STORED and name.rpartition("layers.")[2] in names:
            raise source.complaint(
                "{name} stores {first} as {dtype}, but its config.json does not say how to read it: the model is "
                "quantised and lacks its quantization_config.",
                first=name,
                dtype=dtype,
            )


def _refuse_empty(source: ModelSource) -> None:
    """Raises SpecvizError for tensors without numbers, which safetensors itself would call damaged."""
    for file in sorted(pathlib.Path(source.location).glob("model*.safetensors")):
        with safe_open(file, "pt") as opened:
            for tensor in opened.keys():  # noqa: SIM118
                if 0 in opened.get_slice(tensor).get_shape():
                    raise source.complaint(
                        "{tensor} in {name} is empty, as DeepSpeed's ZeRO leaves weights that lie on other machines: "
                        "gather them (zero_to_fp32.py), and name the folder with the result.",
                        tensor=tensor,
                    )


def stored_dtypes(model: PreTrainedModel) -> dict[str, str]:
    """The dtypes of the tensors in the safetensors files that a model was loaded from, by name and as they call them:
    ``BF16``. None of a model made in memory, or read from a GGUF file."""
    folder = files_of(model)
    dtypes: dict[str, str] = {}
    for file in () if folder is None else sorted(folder.glob("model*.safetensors")):
        with safe_open(file, "pt") as opened:
            dtypes |= {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    return dtypes


def files_of(model: PreTrainedModel) -> pathlib.Path | None:
    """Where the files lie, those of a model from the Hub in its cache; of an unpacked GGUF file, the file."""
    if not model.name_or_path:
        return None
    folder = pathlib.Path(os.path.expanduser(model.name_or_path))
    commit = getattr(model.config, "_commit_hash", None)
    if folder.is_dir() or commit is None:
        return folder
    config = try_to_load_from_cache(model.name_or_path, "config.json", revision=commit)
    return pathlib.Path(config).parent if isinstance(config, str) else None


@contextlib.contextmanager
def unmapped() -> Iterator[None]:
    """Within it, transformers reads safetensors files into memory of their own, as it does on Windows.

    Elsewhere it maps them, and a mapped file counts as the process's memory until its last tensor is given up.
    """
    modeling_utils.safe_open = lambda file, **options: safe_open(file, **options | {"backend": "pread"})
    try:
        yield
    finally:
        # Not the function that was there: another model may be being read, in which case that was its own.
        modeling_utils.safe_open = safe_open
