"""A model's weights: whether they fit, and reading them in the precision that runs fastest."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.distributed import DistributedConfig

from specviz.models.pass_timer import TIMED_WIDTHS, time_in_turns, time_passes
from specviz.models.placement import (
    Place,
    dtype_name,
    free_at,
    free_memory,
    half_precision,
    multiplies_in,
    room_on_gpus,
    room_to_spread,
)
from specviz.models.refusals import refusing_out_of_memory
from specviz.models.sources import ModelSource, Progress
from specviz.passes.several_devices import agreed
from specviz.passes.torchrun import process_count
from specviz.records.errors import SpecvizError
from specviz.records.words import Sentence, bytes_in_words


def with_room(place: Place, sources: Sequence[ModelSource], dtype: torch.dtype) -> Place:
    """`place`, or all GPUs if the models are too large for one but not for all of them together."""
    needed = sum(source.weight_bytes(dtype) for source in sources)
    if place.device.type != "cuda" or needed <= free_memory(place.device):
        return place
    rooms = room_on_gpus()
    return Place(place.device, "spread") if len(rooms) > 1 and needed <= sum(rooms.values()) else place


def check_memory(sources: Sequence[ModelSource], place: Place, dtype: torch.dtype) -> None:
    """Refuses models that do not fit, before loading: with overcommitted memory, running out just kills the process."""
    free = free_at(place)
    for source in sources:
        needed = _needed_at(place, source, dtype)
        if needed > free:
            raise _too_large(source, needed, place.device, dtype, free)
        free -= needed


def _needed_at(place: Place, source: ModelSource, dtype: torch.dtype) -> int:
    """Bytes on the place's own device, in each process. A spread target takes whatever the draft leaves."""
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
    """The model at `place`, in evaluation mode and in `dtype`; a quantised one keeps its own dtype.

    kept: bytes that a spread model leaves free on the place's own device.
    """
    # A quantised checkpoint's scales belong to the dtype it was made in.
    kept_dtype = "auto" if source.quantised else dtype
    options = dict(source.options, dtype=kept_dtype, config=source.config, trust_remote_code=False)
    read_to = torch.device("cpu") if place.lent else place.device  # transformers reads weights in threads of its own
    if place.way == "spread":
        # For weights that stay on disk but cannot be read straight from the checkpoint.
        offloaded = tempfile.TemporaryDirectory(prefix="specviz-", ignore_cleanup_errors=True)
        options |= {"device_map": "auto", "max_memory": room_to_spread(place, kept), "offload_folder": offloaded.name}
    elif place.way == "sharded":
        options["distributed_config"] = DistributedConfig(tp_size=process_count())
    elif read_to.type == "cuda" or source.quantised:
        options["device_map"] = {"": read_to}  # shard by shard: main memory never holds the whole model

    def too_large() -> SpecvizError:
        return _too_large(source, source.weight_bytes(dtype), place.device, dtype, free_memory(place.device))

    with refusing_out_of_memory(too_large), source.explaining("weights"):
        model, report = AutoModelForCausalLM.from_pretrained(source.location, output_loading_info=True, **options)
        if place.lent:
            model.to(place.device)
    missing = sorted(report["missing_keys"])
    if missing:
        raise SpecvizError(
            "The weights of {name} are incomplete: {count} are missing, among them {first}.",
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
    """The model in half precision or float32, whichever runs faster on this CPU, and the seconds that decided it.

    The winner depends on the processor's instructions; it is measured where these do not settle it. The checkpoint is
    read once per dtype rather than converted, because buffers such as rotary frequencies do not survive a cast.
    float32 is not tried if both copies and `spare_bytes` more would not fit in memory.
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
