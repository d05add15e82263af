"""A ZeroGPU host for a machine without one, and what runs on it: `python zero_gpu_host.py FOLDER`.

The real package `spaces` does everything it can do here: it emulates the GPU, packs weights onto the disk, forks the
workers and carries arguments and items across. What needs NVIDIA's driver or the host is stood in for:

- a build of torch without CUDA lacks three names that `spaces` looks up;
- the driver's files, which name the card;
- a worker keeps to the emulation instead of leaving it for a GPU, in every thread, and reads the weights back to where
  the emulation keeps them;
- CUDA events, streams and pinned memory, in a worker alone: where the page is served they fail, as on a host.
"""

from __future__ import annotations

import os
import threading
import time

import torch

if not torch.version.cuda:
    torch.version.cuda, torch._C._cuda_init, torch.cuda._is_in_bad_fork = "12.8", lambda: None, bool

from spaces.zero import config
from spaces.zero import torch as emulation
from spaces.zero.torch import patching

#: The card of today's hosts, of those that the package knows: its driver would tell it.
CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
config._read_gpu_information = lambda: f"Model: {CARD}"
config.get_config.cache_clear()


class HostEvent:
    """A CUDA event by the host's clock."""

    def __init__(self, enable_timing: bool = False):
        self.at = 0.0

    def record(self, stream: object) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        return 1000 * (end.at - self.at)


def start_worker(uuid: str) -> None:
    """What a worker does once the host lets it: here, where it would begin to use CUDA."""
    run = threading.Thread.run

    def emulated(thread: threading.Thread) -> None:
        patching.enter_mode()
        run(thread)

    threading.Thread.run = emulated
    torch.cuda.Event, torch.cuda.current_stream = HostEvent, lambda device=None: None
    torch.Tensor.pin_memory = lambda tensor: tensor
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid


def read_back(callback: object = None) -> None:
    """The packed weights, as `pack_tensors` wrote them."""
    for pack in patching.tensor_packs:
        with open(pack.path(), "rb") as file:
            for tensor, size, aligned in [*(one for batch in pack.batches for one in batch), *pack.big_tensors]:
                stored = bytearray(file.read(aligned))[:size]
                original = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                original.untyped_storage().copy_(torch.frombuffer(stored, dtype=torch.uint8).untyped_storage())
                for fake in pack.fakes[tensor]:
                    patching.cuda_aliases[fake] = original


emulation.unpatch, emulation.init, emulation.move = (lambda: None), start_worker, read_back
