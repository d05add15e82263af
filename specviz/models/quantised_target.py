"""The target with its weights in few bits, to draft for itself: made when it first does, and kept with the pair."""

from __future__ import annotations

from torch import nn

from specviz.models.pair import ModelPair, QuantisedTarget
from specviz.models.placement import free_memory, release_memory
from specviz.models.preparation import loaded
from specviz.passes import compiler
from specviz.passes.devices import is_sharded, is_spread
from specviz.passes.kernel_library import cxx
from specviz.passes.model_twins import rounded_twin
from specviz.passes.static_passes import FastPasses, StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.words import Bytes

#: Bytes that each weight takes in host memory at most: rounded in float32, where no kernels pack codes. On a GPU they
#: are rounded a few rows at a time, into a copy of their own kind.
_ROUNDING_BYTES = 4


def check_quantisable(pair: ModelPair, bits: int) -> None:
    """Raises SpecvizError (field ``drafter``) if the pair's target cannot be made, or there is no memory to make it."""
    if getattr(pair.target.config, "quantization_config", None) is not None:
        raise SpecvizError("{name} is quantised already.", "drafter", name=pair.target_name)
    if is_spread(pair.target) or is_sharded(pair.target):
        raise SpecvizError(
            "{name} lies on several devices: only a target on one can draft for itself in few bits.",
            "drafter",
            name=pair.target_name,
        )
    each = pair.target.dtype.itemsize if pair.device.type == "cuda" else _ROUNDING_BYTES
    needed, free = each * pair.target.num_parameters(), free_memory(pair.device)
    if bits not in pair.passes.quantised and needed > free:
        raise SpecvizError(
            "To round the weights of {name} takes {needed} of memory for a while, and only {free} are free.",
            "drafter",
            name=pair.target_name,
            needed=Bytes(needed),
            free=Bytes(free),
        )


def read_by_kernels(pair: ModelPair, preparing: bool) -> bool:
    """Whether our kernels read the target, which take less time where weights have fewer bits; torch's operations do
    not. preparing: whether passes that are not there yet are going to be prepared."""
    passes = pair.passes.fast.get("target")
    if passes is not None or not preparing or pair.device.type != "cpu":
        return passes is not None and passes.by_kernels
    try:
        cxx()
        StaticPass(pair.target)
    except SpecvizError:
        return False
    return True


def quantised_target(pair: ModelPair, bits: int, beside: FastPasses | None) -> QuantisedTarget:
    """The target in so many bits; made now, unless the last run made it for the same passes of the target's.

    beside: the target's own passes, in whose buffers it shall read; None: transformers' own.
    """
    kept = pair.passes.quantised.get(bits)
    if kept is None or kept.beside is not beside:
        kept = pair.passes.quantised[bits] = _made(pair, bits, beside)
        # Rounding takes several times what is kept of it.
        release_memory()
    return kept


def _made(pair: ModelPair, bits: int, beside: FastPasses | None) -> QuantisedTarget:
    if beside is None:
        twin = rounded_twin(pair.target, bits)
        return QuantisedTarget(twin, None, None, _bytes_beside(pair, twin))
    static = beside.static.quantised(bits)
    return QuantisedTarget(static.original, _passes(static), beside, _bytes_beside(pair, static.model))


def _passes(static: StaticPass) -> FastPasses:
    """By the program of the target itself, if it was compiled here and is right and faster; or else operation by
    operation."""
    passes = FastPasses(static, static, "plain" if static.few_rows is None else "kernels")
    file = compiler.file(StaticPass, static.described())
    if static.few_rows is None or not file.is_file():
        return passes
    try:
        return loaded(static, file, drafts=True)
    except SpecvizError as error:
        passes.refusal = error.at("passes")
        return passes


def _bytes_beside(pair: ModelPair, model: nn.Module) -> int:
    shared = {tensor.data_ptr() for tensor in (*pair.target.parameters(), *pair.target.buffers())}
    own = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    return sum(size for place, size in own.items() if place not in shared)
