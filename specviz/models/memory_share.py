"""How near a target pass comes to what memory allows: the weights that it reads, and how fast memory gives them.

A pass over few tokens reads every weight once and does little with it, so the memory's bandwidth is its limit.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from specviz.models.pair import ModelPair
from specviz.models.placement import free_memory
from specviz.passes.devices import Stopwatch, is_spread, synchronise
from specviz.passes.kernels.huge_pages import HugePages
from specviz.passes.kernels.packed_linear import FewRowsLinear
from specviz.passes.roles import TARGET
from specviz.records.errors import SpecvizError
from specviz.theory.roofline import Memory, MemoryShare

#: The buffer that is read on a CPU and copied on a GPU. It must be larger than the cache: those of server processors
#: come to several MB a core.
_CPU_BYTES, _BYTES_PER_CORE, _GPU_BYTES, _MOST_BYTES = 2**27, 2**24, 2**29, 2**30

#: A smaller one might lie in the cache. No more than this share of what is free is taken.
_LEAST_BYTES, _SHARE_OF_FREE = 2**26, 1 / 8

_REPEATS = {"cpu": 8, "cuda": 20}


# The share


def memory_share(pair: ModelPair) -> MemoryShare | SpecvizError | None:
    """The share by the pass times of this pair, or why it is not known; None where nothing was timed yet."""
    seconds = pair.passes.seconds_by_width.get(1)
    return None if seconds is None else share_of(pair, seconds, pair.passes.memory)


#: Of the target's passes over one token: bytes, seconds, bytes a second, and how much of these a pass uses.
_FIELDS = ("weight_bytes", "one_token_seconds", "bandwidth", "share")


def memory_values(pair: ModelPair) -> dict[str, Any] | None:
    """`memory_share` as plain values: its figures, None where they are not known, and a ``sentence`` on them."""
    share = memory_share(pair)
    if share is None:
        return None
    if isinstance(share, SpecvizError):
        return dict.fromkeys(_FIELDS) | {"sentence": share.message}
    figures = share.weight_bytes, share.seconds, share.memory.bandwidth, share.share
    return dict(zip(_FIELDS, figures, strict=True)) | {"sentence": str(share.sentence)}


def share_of(pair: ModelPair, seconds: float, memory: Memory | None) -> MemoryShare | SpecvizError:
    """The share of a target pass over one token in `seconds`, or why it is not known.

    memory: as `measured_memory` found it.
    """
    if (reason := _why_not_counted(pair.target)) is not None:
        return reason
    if memory is None:
        return SpecvizError("There is too little free memory to measure the memory's speed.", "target")
    prepared = pair.passes.fast.get(TARGET)
    size = stored_bytes(weights_read(pair.target if prepared is None else prepared.static.model))
    share = MemoryShare(size, seconds, memory)
    if share.share > 1 and not share.from_cache:
        return SpecvizError(
            "The pass read {rate} of weights a second, more than the {bandwidth} a second that memory reached "
            "when it was measured.",
            "target",
            rate=share.rate,
            bandwidth=share.bandwidth,
        )
    return share


def _why_not_counted(model: PreTrainedModel) -> SpecvizError | None:
    """Why nobody can count the bytes that this model's passes read from one memory."""
    if is_spread(model):
        return SpecvizError("The target is spread over several devices, each with its own memory.", "target")
    if any("expert" in f"{name} {type(part).__name__}".lower() for name, part in model.named_modules()):
        return SpecvizError(
            "The target is a mixture of experts: the weights that a pass reads depend on the experts that it chooses.",
            "target",
        )
    return None


# What a pass reads


def weights_read(model: PreTrainedModel) -> list[torch.Tensor]:
    """The tensors that a pass of a model, or of its twin on our kernels, reads whole: each once, as it is stored."""
    table_ids = {id(table) for table in looked_up(model)}
    quantised = getattr(model.config, "quantization_config", None) is not None
    every = (_weights_of(part, quantised) for part in _reading_text(model))
    return list({id(weight): weight for weights in every for weight in weights if id(weight) not in table_ids}.values())


def _reading_text(model: PreTrainedModel) -> Iterable[nn.Module]:
    """The modules that a text passes through: a model that also sees or hears has others."""
    if model.config.get_text_config() is model.config:
        return model.modules()
    return itertools.chain(model.get_decoder().modules(), [model.get_output_embeddings()])


def _weights_of(part: nn.Module, quantised: bool) -> Iterator[torch.Tensor]:
    """A module's own weights. quantised: some libraries keep codes and scales in buffers, or beside the codes."""
    if isinstance(part, FewRowsLinear):
        yield from part.read
        return
    for weight in part.parameters(recurse=False):
        yield weight
        if (scales := getattr(getattr(weight, "quant_state", None), "absmax", None)) is not None:  # of bitsandbytes
            yield scales
    if quantised:
        yield from part.buffers(recurse=False)


def looked_up(model: PreTrainedModel) -> list[torch.Tensor]:
    """Tables of which a pass reads one row a token: embeddings, unless they are the output head too."""
    head = getattr(model.get_output_embeddings(), "weight", None)
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    return [table for table in tables if table is not head]


def stored_bytes(parts: Iterable[torch.Tensor]) -> int:
    """Bytes of these tensors as they are stored."""
    return sum(stored.numel() * stored.element_size() for part in parts for stored in _stored(part))


def _stored(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The storage of a tensor's values: itself, or for a quantised one the packed values and their scales."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [stored for name in names for stored in _stored(getattr(tensor, name))]


# How fast memory is


def measured_memory(device: torch.device, threads: int | None = None) -> Memory | None:
    """The bandwidth of the device's memory, measured in a tenth of a second; None where too little of it is free.

    On a GPU by a copy, of which bytes read and bytes written count, as is usual; on a CPU, where writing can be slower,
    by reading, with so many threads.
    """
    on_gpu = device.type == "cuda"
    full_size = _GPU_BYTES if on_gpu else min(_MOST_BYTES, max(_CPU_BYTES, _BYTES_PER_CORE * (os.cpu_count() or 1)))
    size = min(full_size, int(_SHARE_OF_FREE * free_memory(device)))
    if size < _LEAST_BYTES:
        return None
    measure = copy_bandwidth if on_gpu else read_bandwidth
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        bandwidth = measure(size, device, _REPEATS[device.type])
    finally:
        torch.set_num_threads(before)
    if on_gpu:
        # These buffers are no part of what the models need, and a recording cannot take back what torch keeps of them.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return Memory(bandwidth, size, None if on_gpu else threads or before)


def read_bandwidth(size: int, device: torch.device, repeats: int = 8) -> float:
    """Bytes a second, summing up a buffer of `size` bytes over and over.

    On a CPU the buffer lies in large pages, as the kernels' weights do; on small ones it would be read more slowly.
    """
    numbers = size // 4
    if device.type == "cpu":
        buffer = HugePages().room(4 * numbers).view(torch.float32)
    else:
        buffer = torch.empty(numbers, dtype=torch.float32, device=device)
    buffer.fill_(1)
    return buffer.numel() * 4 / fastest(buffer.sum, device, repeats)


def copy_bandwidth(size: int, device: torch.device, repeats: int) -> float:
    """Bytes a second, read and written together, copying a buffer of `size` bytes over and over."""
    source, copy = (torch.ones(size // 4, dtype=torch.float32, device=device) for _ in range(2))
    stopwatch = Stopwatch(device)
    copy.copy_(source)
    for _ in range(repeats):
        with stopwatch.span():
            copy.copy_(source)
    stopwatch.synchronize()
    return 2 * source.numel() * 4 / min(stopwatch.between(*span) for span in stopwatch.spans)


def fastest(work: Callable[[], object], device: torch.device, repeats: int = 8) -> float:
    """Seconds of the fastest of several repeats, warm: the best that the machine can do."""
    work()
    seconds = []
    for _ in range(repeats):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
