"""Whether memory has room for CUDA graphs of a model's passes."""

from specviz.models.placement import free_memory
from specviz.passes.cuda_graphs import WIDTHS
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.words import Bytes

#: Positions of a long text. Rooms for keys and values double up to it, and all of them are kept.
_POSITIONS = 2048

#: Tensors as large as the widest pass's logits that recordings hold: whole rounds have several.
_LOGITS = 4

#: Workspaces of libraries, and some dozens of graphs of a few hundred kernels each.
_GRAPHS = 2**28


def refuse_short_memory(static: StaticPass) -> None:
    """Raises SpecvizError (field ``passes``) where graphs of these passes would leave no memory for texts."""
    needed, free = graph_bytes(static), free_memory(static.device)
    if needed > free:
        raise SpecvizError(
            "CUDA graphs of {name} would take about {needed} of memory, but only {free} are free.",
            "passes",
            name=static.name,
            needed=Bytes(needed),
            free=Bytes(free),
        )


def graph_bytes(static: StaticPass) -> int:
    """A rough count of the memory that recorded passes take beside the weights."""
    logits = _LOGITS * WIDTHS[-1] * static.logit_rows * static.vocab_size * 4
    row = sum(heads * size for heads, size in static.kv_shapes) * static.inner_dtype.itemsize
    return _GRAPHS + logits + (0 if static.shares_kv else 2 * _POSITIONS * row)
