"""Where a model runs, on one device or several, and how finished work on a device is timed.

Spread: one process runs the layers in turn, and accelerate moves what flows through them between devices.
Sharded (tensor parallelism): all processes run the same program with the same seed and meet inside each layer, so none
may decide anything differently: one that drafted or accepted another token would leave the others waiting. Everything
that decisions depend on is therefore the leader's, bit by bit, in all of them:

- the logits of target and draft model (`share_leaders_logits`). A head sharded by vocabulary gives the same logits
  everywhere, since each is computed once and copied; but a head that is not sharded rounds sums over processes, and a
  draft model runs whole in each process, on as many threads as that process has.
- the hidden states that trained heads read (`leaders`), and the number of threads and measured times (`agreed`).

From the logits on, everything is the same arithmetic on the same numbers, which one kind of device rounds one way;
`join` refuses mixtures. Random numbers are drawn on the host, from the seed.
"""

from __future__ import annotations

import datetime
import time
from typing import TypeAlias

import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from specviz.passes.processes import count_here, place_here, process_count
from specviz.records.errors import SpecvizError

#: One process may take much longer than another to read its shard of a large model, without having failed.
_PATIENCE = datetime.timedelta(hours=2)


def join() -> torch.device:
    """Joins the processes that torchrun started; returns this one's device: a GPU each, or the CPU for all.

    Raises SpecvizError (field ``device``) if there is only one process, or if the GPUs are too few or differ in kind.
    """
    if process_count() == 1:
        raise SpecvizError(
            "The device parallel needs several processes: torchrun --nproc-per-node 2 -m specviz run … starts two.",
            "device",
        )
    on_gpus = torch.cuda.is_available()
    if on_gpus and count_here() > torch.cuda.device_count():
        raise SpecvizError(
            "{processes} processes need one GPU each, but this machine has {count}: start fewer.",
            "device",
            processes=count_here(),
            count=torch.cuda.device_count(),
        )
    device = torch.device("cuda", place_here()) if on_gpus else torch.device("cpu")
    if not dist.is_initialized():
        if on_gpus:
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if on_gpus else "gloo", device_id=device if on_gpus else None, timeout=_PATIENCE)
    _refuse_mixtures(device)
    return device


def _refuse_mixtures(device: torch.device) -> None:
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    this_kind = f"{kind} with torch {torch.__version__} and transformers {transformers.__version__}"
    kinds = [this_kind] * dist.get_world_size()
    dist.all_gather_object(kinds, this_kind)
    if len(set(kinds)) > 1:
        raise SpecvizError(
            "All processes need the same kind of device and the same packages, or they round differently and "
            "diverge; found {kinds}.",
            "device",
            kinds="; ".join(sorted(set(kinds))),
        )


def leave() -> None:
    """Undoes `join`, if it was called."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def is_sharded(model: PreTrainedModel) -> bool:
    """True if each process holds a part of every layer."""
    return (model.tp_size or 1) > 1


def is_spread(model: PreTrainedModel) -> bool:
    """True if the model's layers lie on several devices, or partly in main memory or on disk."""
    return hasattr(model, "_hf_hook")


def home_of(model: PreTrainedModel) -> torch.device:
    """The device where a model takes its tokens, and where its logits and everything small belong."""
    # The first parameters of a spread model may lie on disk, where no tensor can be made.
    return torch.device(model._hf_hook.execution_device) if is_spread(model) else model.device


def devices_of(model: PreTrainedModel) -> list[str]:
    """Where this process keeps a model, in the order of its layers: ``["cuda:0", "cuda:1", "cpu", "disk"]``."""
    if not is_spread(model):
        return [str(model.device)]
    places = dict.fromkeys(model.hf_device_map.values())
    return [f"cuda:{place}" if isinstance(place, int) else str(place) for place in places]


def place_of(model: PreTrainedModel) -> str:
    """Where a model runs, for people: ``"cuda:0"``, ``"cuda:0, cuda:1, cpu"``, ``"2 × cuda"``."""
    return f"{model.tp_size} × {model.device.type}" if is_sharded(model) else ", ".join(devices_of(model))


def share_leaders_logits(model: PreTrainedModel) -> None:
    """From now on every process gets the leader's logits of this model. Needed for all models of a sharded pair."""

    def take_the_leaders_logits(model: PreTrainedModel, inputs: object, output: ModelOutput) -> None:
        output.logits = output.logits.contiguous()
        dist.broadcast(output.logits, src=0)

    model.register_forward_hook(take_the_leaders_logits)


def leaders(tensor: Tensor, model: PreTrainedModel) -> Tensor:
    """The leader's values of a tensor that every process of a sharded model has; the tensor itself otherwise."""
    if is_sharded(model):
        dist.broadcast(tensor, src=0)
    return tensor


def agreed(number: float, model: PreTrainedModel) -> float:
    """The leader's number if the model is sharded, so that measurements decide alike in all processes."""
    if not is_sharded(model):
        return number
    return leaders(torch.tensor(number, dtype=torch.float64, device=home_of(model)), model).item()


def least(number: float, device: torch.device) -> float:
    """The smallest of all processes' numbers, after `join`."""
    lowest = torch.tensor(number, dtype=torch.float64, device=device)
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    return lowest.item()


Mark: TypeAlias = float | torch.cuda.Event


class Span:
    """Work between two marks. A class, because `contextlib.contextmanager` has several times the overhead."""

    def __init__(self, stopwatch: Stopwatch):
        self.stopwatch = stopwatch

    def __enter__(self) -> None:
        self.start = self.stopwatch.mark()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stopwatch.spans.append((self.start, self.stopwatch.mark()))


class Stopwatch:
    """Marks moments without waiting for the device; reads them once the caller has synchronised.

    On CUDA, where a host clock would only measure the launch, marks are events recorded in the stream.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.spans: list[tuple[Mark, Mark]] = []

    def mark(self) -> Mark:
        """This moment in the device's stream of work."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    @staticmethod
    def wait_for(mark: Mark) -> None:
        """Waits until the device has come to this moment, whatever it was given since."""
        if not isinstance(mark, float):
            mark.synchronize()

    @staticmethod
    def between(start: Mark, end: Mark) -> float:
        """Seconds from one mark to the other; on CUDA both must have been reached."""
        if isinstance(start, float):
            return end - start
        return start.elapsed_time(end) / 1000

    def span(self) -> Span:
        """A context whose work counts as time in a model's forward pass."""
        return Span(self)

    def take_spans(self) -> float:
        """Seconds spent inside spans since the last call."""
        seconds = sum(self.between(start, end) for start, end in self.spans)
        self.forget_spans()
        return seconds

    def forget_spans(self) -> None:
        """Drops the spans unread, so that nothing has to have finished."""
        self.spans.clear()

    def synchronize(self) -> None:
        """Waits until the device has finished what it was given."""
        synchronise(self.device)


def synchronise(device: torch.device) -> None:
    """Waits until the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
