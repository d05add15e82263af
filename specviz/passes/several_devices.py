"""One model on several devices: its layers spread over them, or every layer sharded over processes.

Spread, one process runs the layers one after the other, and accelerate moves between devices what flows through them.
Sharded (tensor parallelism), all processes run this same program on the same seed and meet within each layer, so none
may decide anything differently: one that made another draft or took another token would leave the others waiting.
What decisions are made from is therefore the leader's in all of them, bit by bit:

- logits, of target and draft model (`keep_in_step`). An output head sharded by vocabulary gives the same ones
  everywhere, as each logit is computed once and copied; a head that is not sharded rounds what sums over processes
  gave it, and a draft model runs whole in each process, on as many threads as that one has.
- hidden states that trained heads read (`leaders`), and measured times, by which dtype and threads are chosen
  (`agreed`).

From the logits on everything is the same arithmetic on the same numbers, which one kind of device rounds in one way;
`join` refuses others. Chance is drawn on the host, from the seed.
"""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.integrations.accelerate import load_offloaded_parameter

from specviz.passes.torchrun import count_here, place_here, process_count
from specviz.records.errors import SpecvizError

#: Reading its shard of a large model takes one process much longer than another: a wait, not yet a failure.
_PATIENCE = datetime.timedelta(hours=2)


def join() -> torch.device:
    """Meets the processes that torchrun started; returns this one's own device: a GPU each, or the CPU for all.

    Raises SpecvizError (field ``device``) if there is only one process, if the GPUs are too few, or of several kinds.
    """
    if process_count() == 1:
        raise SpecvizError(
            "The device parallel wants several processes: torchrun --nproc-per-node 2 -m specviz run … starts two.",
            "device",
        )
    on_gpus = torch.cuda.is_available()
    if on_gpus and count_here() > torch.cuda.device_count():
        raise SpecvizError(
            "{processes} processes take a GPU each, and this machine has {count}: start fewer.",
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
    own = f"{kind} with torch {torch.__version__} and transformers {transformers.__version__}"
    kinds = [own] * dist.get_world_size()
    dist.all_gather_object(kinds, own)
    if len(set(kinds)) > 1:
        raise SpecvizError(
            "All processes need one kind of device and the same packages, or they would round differently and part: "
            "here there are {kinds}.",
            "device",
            kinds="; ".join(sorted(set(kinds))),
        )


def leave() -> None:
    """Ends what `join` began, where it was called."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def is_sharded(model: PreTrainedModel) -> bool:
    """Whether each process holds a part of every layer."""
    return (model.tp_size or 1) > 1


def is_spread(model: PreTrainedModel) -> bool:
    """Whether its layers lie on several devices, or partly in main memory or on disk."""
    return hasattr(model, "_hf_hook")


def home_of(model: PreTrainedModel) -> torch.device:
    """The device on which a model takes its tokens, and on which its logits and everything small are wanted."""
    # Of a spread model the first parameters may lie on disk, which is no device to make tensors on.
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


def keep_in_step(model: PreTrainedModel) -> None:
    """From now on every process sees the leader's logits of this model. Due for all models of a sharded pair."""
    model.register_forward_hook(_take_the_leaders_logits)


def _take_the_leaders_logits(model, inputs, output) -> None:
    output.logits = output.logits.contiguous()
    dist.broadcast(output.logits, src=0)


def leaders(tensor: Tensor, model: PreTrainedModel) -> Tensor:
    """The leader's contents of a tensor that all processes of a sharded model made; elsewhere the tensor as it is."""
    if is_sharded(model):
        dist.broadcast(tensor, src=0)
    return tensor


def agreed(number: float, model: PreTrainedModel) -> float:
    """The leader's number where the model is sharded, so that what is measured decides alike in all processes."""
    if not is_sharded(model):
        return number
    return leaders(torch.tensor(number, dtype=torch.float64, device=home_of(model)), model).item()


def least(number: float, device: torch.device) -> float:
    """The smallest of all processes' numbers, after `join`."""
    lowest = torch.tensor(number, dtype=torch.float64, device=device)
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    return lowest.item()


def whole_parameter(model: PreTrainedModel, name: str) -> Tensor:
    """A parameter with all its values, also where it is sharded, which every process has to ask for, or offloaded."""
    parameter = model.get_parameter(name)
    if isinstance(parameter, DTensor):
        return parameter.full_tensor()
    return load_offloaded_parameter(model, name) if parameter.is_meta else parameter
