"""The processes that torchrun started beside this one, as it tells each of them in its environment.

Without torchrun there is one process, which leads. No torch: the command line asks before anything is loaded.
"""

from __future__ import annotations

import os

from specviz.records.errors import SpecvizError


def process_count() -> int:
    """How many processes run this same program, this one included."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def count_here() -> int:
    """How many of them run on this machine and share its memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def place_here() -> int:
    """This process's number among those on this machine, from 0: the GPU it takes."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_leader() -> bool:
    """Whether this is the process that prints, writes files, and whose numbers count."""
    return int(os.environ.get("RANK", "0")) == 0


def tells() -> bool:
    """Whether it falls to this process to tell of a refusal: to the first that asks, since all may meet the same one.

    Not to the leader: one process may run out of memory alone, and torchrun ends the others as soon as one has failed.
    """
    if process_count() == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    from torch.distributed import TCPStore

    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return store.add("specviz refusals", 1) == 1


def refuse_more_than_one() -> None:
    """For what runs in one process: raises SpecvizError (field ``device``) where torchrun has started several."""
    if process_count() > 1:
        raise SpecvizError("Only run and bench take several processes: start this one without torchrun.", "device")
