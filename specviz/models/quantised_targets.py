"""The target with its weights in few bits, which drafts for itself; made when it first does."""

import torch
from torch import Tensor, nn

from specviz.models import pass_checks
from specviz.models.gguf_files import in_few_bits
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import QuantisedTarget
from specviz.models.placement import free_memory, release_memory
from specviz.passes import programs
from specviz.passes.devices import is_spread
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.few_bits import input_squares, rounded_twin
from specviz.passes.kernels.kernel_library import cxx
from specviz.passes.model_twins import is_linear
from specviz.passes.reading_checks import some_tokens
from specviz.passes.roles import TARGET
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.words import Bytes

#: How many arbitrary tokens tell how large the inputs of the target's layers are: as well as 2,000 of its own texts.
_READ_TOKENS = 128

#: Bytes that each weight takes in host memory at most: rounded in float32, where no kernels pack codes. On a GPU they
#: are rounded a few rows at a time, into a copy of their own kind.
_ROUNDING_BYTES = 4


def check_quantisable(pair: ModelPair, bits: int) -> None:
    """Raises SpecvizError (field ``drafter``) if the pair's target cannot be made, or there is no memory to make it."""
    if getattr(pair.target.config, "quantization_config", None) is not None:
        raise SpecvizError("{name} is quantised already.", "drafter", name=pair.target_name)
    if is_spread(pair.target):
        raise SpecvizError(
            "{name} lies on several devices: only a target on a single device can draft for itself in few bits.",
            "drafter",
            name=pair.target_name,
        )
    weight_bytes = pair.target.dtype.itemsize if pair.device.type == "cuda" else _ROUNDING_BYTES
    needed, free = weight_bytes * pair.target.num_parameters(), free_memory(pair.device)
    if bits not in pair.passes.quantised and needed > free:
        raise SpecvizError(
            "Quantising {name} temporarily needs {needed} of memory, but only {free} are free.",
            "drafter",
            name=pair.target_name,
            needed=Bytes(needed),
            free=Bytes(free),
        )


def is_quicker(pair: ModelPair, preparing: bool) -> bool:
    """True if our kernels read the target, and in more than few bits: they take less time where weights have fewer,
    torch's operations do not. preparing: True if passes that are not there yet are going to be prepared."""
    if pair.target.dtype == torch.float32 and in_few_bits(pair.stored.get("target")):
        return False
    passes = pair.passes.fast.get(TARGET)
    if passes is not None or not preparing or pair.device.type != "cpu":
        return passes is not None and passes.by_kernels
    try:
        cxx()
        StaticPass(pair.target)
    except SpecvizError:
        return False
    return True


def quantised_target(pair: ModelPair, bits: int, beside: FastPasses | None) -> QuantisedTarget:
    """The target in `bits` bits; made now, unless the last run made it for the same passes of the target's.

    beside: the target's own passes, whose buffers it uses; None: transformers' own.
    """
    quantised = pair.passes.quantised.get(bits)
    if quantised is None or quantised.beside is not beside:
        quantised = None
        pair.passes.quantised.pop(bits, None)  # or two of them would be in memory
        squares = _input_squares(pair, beside) if bits == 4 else {}
        if beside is None:
            twin = rounded_twin(pair.target, bits, squares)
            quantised = QuantisedTarget(twin, None, None, _own_bytes(pair, twin))
        else:
            static = beside.static.quantised(bits, squares)
            quantised = QuantisedTarget(
                static.original, _quantised_passes(static), beside, _own_bytes(pair, static.model)
            )
        pair.passes.quantised[bits] = quantised
        # Rounding takes several times the memory of its result.
        release_memory()
    return quantised


def _input_squares(pair: ModelPair, beside: FastPasses | None) -> dict[str, Tensor]:
    """See `input_squares`; of the target, which is read once, the first time it is quantised."""
    passes = pair.passes
    if passes.input_squares is None:
        names = [name for name, part in pair.target.named_modules() if is_linear(part)]
        reader = pair.target if beside is None else beside.static.reference()
        count = min(_READ_TOKENS, pair.context_length or _READ_TOKENS)
        passes.input_squares = input_squares(reader, names, some_tokens(pair.target, count))
    return passes.input_squares


def _quantised_passes(static: StaticPass) -> FastPasses:
    """By the program of the target itself, if it was compiled here and is right and faster; else operation by
    operation."""
    passes = FastPasses(static, static, "plain" if static.few_rows is None else "kernels")
    file = programs.file(StaticPass, static.described())
    if static.few_rows is None or not file.is_file():
        return passes
    try:
        return pass_checks.compiled(static, file, drafts=True)
    except SpecvizError as error:
        passes.refusal = error.at("passes")
        return passes


def _own_bytes(pair: ModelPair, model: nn.Module) -> int:
    """Bytes of the model's tensors that are not the target's."""
    shared = {tensor.data_ptr() for tensor in (*pair.target.parameters(), *pair.target.buffers())}
    sizes = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    return sum(size for place, size in sizes.items() if place not in shared)
