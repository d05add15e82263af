"""The processes that torchrun starts together, and ZeroGPU, which lends a GPU to a process for one call.

No torch: the command line and the page ask before it is loaded. Without torchrun there is one process, the leader.
"""

import os
import sys

from specviz.records.errors import SpecvizError


def process_count() -> int:
    """How many processes run this program, this one included."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def count_here() -> int:
    """How many of them run on this machine and share its memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def place_here() -> int:
    """This process's number among those on this machine, from 0: the GPU it takes."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_leader() -> bool:
    """True for the process that prints, writes files, and whose numbers count."""
    return int(os.environ.get("RANK", "0")) == 0


def should_report() -> bool:
    """True if this process should print a refusal: the first that asks, since all may meet the same one.

    Not always the leader: one process may run out of memory alone, and torchrun ends the others once one has failed.
    """
    if process_count() == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    from torch.distributed import TCPStore

    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return store.add("specviz refusals", 1) == 1


def refuse_more_than_one() -> None:
    """Raises SpecvizError (field ``device``) if torchrun has started several processes."""
    if process_count() > 1:
        raise SpecvizError(
            "Only run and bench work in several processes: start this command without torchrun.", "device"
        )


def is_zero_gpu() -> bool:
    """True if ZeroGPU is on, as the package `spaces` is configured, which every Gradio Space has.

    In the process that serves the page there is no GPU then: `spaces` emulates one, in the thread that imported it
    (`specviz.ui.device`), so that weights can be "moved" there; each call runs in a process that is forked for it.
    """
    spaces = sys.modules.get("spaces")
    return spaces is not None and spaces.config.Config.zero_gpu
