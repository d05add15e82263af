"""The processes that torchrun started beside this one, as its environment variables tell.

Without torchrun there is one process, the leader. No torch: the command line asks before anything is loaded.
"""

from __future__ import annotations

import os

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
    """Whether this is the process that prints, writes files, and whose numbers count."""
    return int(os.environ.get("RANK", "0")) == 0


def tells() -> bool:
    """Whether this process should print a refusal: the first that asks, since all may meet the same one.

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
        raise SpecvizError("Only run and bench work in several processes: start this without torchrun.", "device")
