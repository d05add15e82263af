"""Where models run and in what precision: devices, dtypes and the memory they have."""

import functools
import gc
import pathlib
from dataclasses import dataclass

import psutil
import torch

from specviz.passes.model_twins import trim
from specviz.passes.zero_gpu import is_lent
from specviz.records.errors import SpecvizError, quoted

#: Where a container's limits are written (cgroup v2).
_CGROUP = pathlib.Path("/sys/fs/cgroup")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

#: The share of a device's free memory that a spread model's weights may fill; caches need the rest.
_FILLED = 0.9


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pair runs."""

    device: torch.device  # of tokens, logits, the draft model and everything small
    spread: bool = False  # the target's layers lie on all devices; otherwise the target is on that one too

    @property
    def lent(self) -> bool:
        """True if its GPU is there only during a call (`is_lent`): until then nothing can be timed, and only
        the thread that imported `spaces` can put weights there."""
        return is_lent(self.device.type)


def place_named(name: str | torch.device) -> Place:
    """The place of this name: ``spread`` or a device. Raises SpecvizError (field ``device``)."""
    if name == "spread":
        place = Place(device_named("auto"), spread=True)
        if place.lent:
            raise SpecvizError("A GPU that is lent for one call takes whole models only: choose auto.", "device")
        return place
    return Place(device_named(name))


def room_on_gpus() -> dict[int | str, int]:
    """How many bytes of weights each GPU may still take, by its number."""
    return {gpu: int(_FILLED * free_memory(f"cuda:{gpu}")) for gpu in range(torch.cuda.device_count())}


def room_to_spread(place: Place, spare: int) -> dict[int | str, int]:
    """How many bytes of weights each GPU and main memory (``cpu``) may take; the rest stays on disk.

    spare: bytes to leave free on the place's own device.
    """
    room = room_on_gpus() if place.device.type == "cuda" else {}
    room |= {"cpu": int(_FILLED * free_memory("cpu"))}
    home = "cpu" if place.device.type == "cpu" else place.device.index or 0
    return room | {home: max(0, room[home] - spare)}


def within_reach(name: str | torch.device) -> int:
    """Bytes that a pair loaded on the device of this name could take; with ``auto``, on all GPUs together."""
    if name == "auto" and torch.cuda.is_available():
        return sum(room_on_gpus().values()) if torch.cuda.device_count() > 1 else free_memory("cuda")
    if name == "spread":
        return sum(room_to_spread(Place(device_named("auto"), spread=True), spare=0).values())
    return free_memory(device_named(name))


def check_default_device() -> None:
    """Raises SpecvizError (field ``device``) where tensors that name no device would not be made on the CPU, as this
    package's are."""
    if (device := torch.get_default_device()).type != "cpu":
        raise SpecvizError(
            "torch.set_default_device({device}) is set, but specviz chooses devices itself: call "
            'torch.set_default_device("cpu") first.',
            "device",
            device=quoted(str(device)),
        )


def device_named(name: str | torch.device) -> torch.device:
    """The device of this name, or the best for auto. Raises SpecvizError (field ``device``) if it cannot be used."""
    # Never "mps": exact draws need float64, which it lacks.
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise SpecvizError(
            "{name} is not a device: use auto, cpu, cuda or cuda:1.", "device", name=quoted(name)
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise SpecvizError("specviz runs on cpu or cuda, not on {kind}: choose auto.", "device", kind=device.type)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SpecvizError(
                "There is no CUDA device that this version of torch can use: choose cpu or auto.", "device"
            )
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise SpecvizError(
                "There is no device {name}: this machine has {count}, counted from 0.",
                "device",
                name=device,
                count=count,
            )
    return device


def dtype_named(name: str | torch.dtype) -> torch.dtype | None:
    """The dtype of this name; None for auto. Raises SpecvizError (field ``dtype``) if models cannot run in it."""
    if name == "auto":
        return None
    dtype = _DTYPES.get(str(name).removeprefix("torch."))
    if dtype is None:
        raise SpecvizError(
            "{name} is not a dtype that models can run in: use auto, {names}.",
            "dtype",
            name=str(name),
            names=", ".join(_DTYPES),
        )
    return dtype


def automatic_dtype(
    device: torch.device, checkpoint: torch.dtype | None, full_bytes: int, in_few_bits: bool = False
) -> torch.dtype:
    """The dtype that ``auto`` stands for on this device: half precision where it multiplies in it, else float32.

    The processor's instructions decide and never a stopwatch, so that every start on a machine decides alike. Other
    CPUs take half precision only for weights that leave no room in float32. full_bytes: of the weights in float32.
    in_few_bits: whether the checkpoint has them in codes, which half precision would round, and which our kernels read
    as they are (`grids.on_grids`).
    """
    half = half_precision(device, checkpoint)
    quicker = multiplies_in(half) and not in_few_bits
    if device.type == "cuda" or quicker or full_bytes > _FILLED * free_memory(device):
        return half
    return torch.float32


def half_precision(device: torch.device, checkpoint: torch.dtype | None) -> torch.dtype:
    """The half precision that the device multiplies in; where it has none, the checkpoint's own: no second rounding."""
    if device.type == "cuda":
        # Of this device, which need not be the current one: bfloat16 came with compute capability 8.
        return torch.bfloat16 if torch.cuda.get_device_properties(device).major >= 8 else torch.float16
    keeps = checkpoint == torch.float16 and not multiplies_in(torch.bfloat16)
    return torch.float16 if keeps else torch.bfloat16


def multiplies_in(dtype: torch.dtype) -> bool:
    """True if `dtype` is bfloat16 and this CPU has instructions to multiply in it.

    Then it is faster than float32 once passes are compiled: half the bytes, and no conversions. On other CPUs a product
    in half precision can take seventy times as long as in float32.
    """
    return dtype == torch.bfloat16 and torch.cpu._is_avx512_bf16_supported()


def dtype_name(dtype: torch.dtype) -> str:
    """``"bfloat16"`` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def free_memory(device: torch.device | str = "cpu") -> int:
    """Bytes still free on the device."""
    device = torch.device(device)
    if device.type != "cuda":
        return memory_at_hand()
    # Memory that torch has reserved but does not use is free for us, though the driver counts it as taken.
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + idle


def memory_at_hand() -> int:
    """Bytes of main memory this process may still take: free on the machine, or in its container if that is less."""
    free = psutil.virtual_memory().available
    left_in_container = _container_bytes_left()
    return free if left_in_container is None else min(free, left_in_container)


def _container_bytes_left() -> int | None:
    """Bytes left under a container's limit, as hosted Spaces have one; None where there is no limit."""
    try:
        limit = int((_CGROUP / "memory.max").read_text("utf-8"))
        used = int((_CGROUP / "memory.current").read_text("utf-8"))
        statistics = (_CGROUP / "memory.stat").read_text("utf-8").split()
    except (OSError, ValueError):  # no such file, or no limit: "max"
        return None
    # Cached file pages count as used, but are given back as soon as they are needed.
    cached = dict(zip(statistics[::2], statistics[1::2])).get("inactive_file", "0")
    return max(limit - used + int(cached), 0)


@functools.cache
def set_libraries_aside() -> None:
    """Hides everything imported so far from the garbage collector, which took a quarter of a second to go through it
    now and then, in the middle of a round."""
    gc.freeze()


def release_memory() -> None:
    """Frees memory that nothing refers to any more, and returns it to the system."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim()
