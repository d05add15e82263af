"""Compiles a model's passes decoder layer by decoder layer, where they are recorded as CUDA graphs afterwards.

All layers of one kind are the same code on other weights, so two programs serve all of them: one for passes over one
token, whose products are streams of weights, and one for passes over several. Both leave the buffers' room open.
Inductor makes them from a graph of the layer, whose weights are among the inputs, and puts each into a file that loads
in a moment. What is around the layers stays transformers' own code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import itertools
import os
import pathlib
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import transformers
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call
from transformers import Cache
from transformers.cache_utils import DummyLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from specviz.passes import joined_weights, layer_calls, model_twins, static_passes
from specviz.passes.cuda_graphs import WIDTHS
from specviz.passes.fast_passes import LEAST_ROOM
from specviz.passes.joined_weights import join, joinable, laid_together
from specviz.passes.kernels.kernel_library import cache_folder, cxx, processor
from specviz.passes.layer_calls import CONSTANTS, COUNT, ROOM, TRACED, Form, Seen, seen_calls, sizes_of
from specviz.passes.model_twins import FEW_QUERIES, GROUPED, attending_by, shared_weights, sharing_twin, without_weights
from specviz.passes.static_passes import StaticLayer, StaticPass
from specviz.passes.zero_gpu import is_lent
from specviz.records.errors import SpecvizError, first_line

#: Inductor's settings for programs over one token: a product with one row becomes a sum over the weights, into which
#: norms and activations fuse, and each kernel's blocks are tried out. In a trial on an H100 a pass of 8B's shape took
#: 6.3 ms so, and 6.8 with cuBLAS. Several tokens are cuBLAS's.
_OPTIONS = {True: {"coordinate_descent_tuning": True}, False: {}}

#: Reads whatever the model hands over; ``program(*inputs)`` -> the tensors that the layer returns.
Program = Callable[..., Sequence[Tensor]]


def refuse_uncompilable(device: torch.device) -> None:
    """Raises SpecvizError (field ``passes``) if no layers can be compiled for this device here."""
    if is_lent(device.type):
        raise SpecvizError("ZeroGPU lends a GPU for too short a time to compile anything.", "passes")
    if not hasattr(torch._inductor, "standalone_compile"):
        raise SpecvizError("This version of torch cannot keep compiled layers: install a newer one.", "passes")
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise SpecvizError("Triton, which compiles for the GPU, is not installed.", "passes")
    cxx()  # Triton compiles what launches its kernels


# One kind of layer


@dataclass(frozen=True, eq=False)
class LayerCode:
    """A kind of decoder layer as a function of tensors alone: ``code(*inputs, where, keys, values, *weights)``.

    layer: one of the kind, without weights, its attention for few queries and its products joined.
    """

    layer: nn.Module
    place: int  # among the cache's layers
    call: Form
    result: Form
    sizes: tuple[tuple[int | str, ...], ...]  # of each input of the call
    dtypes: tuple[torch.dtype, ...]
    kv_shapes: tuple[tuple[int, int], ...]  # (heads, head size) of keys and of values
    kv_dtype: torch.dtype
    fewest: int  # tokens of a pass
    device: torch.device
    names: tuple[str, ...]  # of weights and buffers of `layer`
    model_names: tuple[tuple[str, ...], ...]  # the model's names of the tensors that are joined in each of these
    described: str = field(repr=False)  # all that its program depends on, apart from torch

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        count = len(self.sizes)
        inputs, (where, keys, values), weights = arguments[:count], arguments[count : count + 3], arguments[count + 3 :]
        cache = Cache(layers=[*[DummyLayer()] * self.place, StaticLayer(keys, values, where)])
        positional, named = self.call.filled(inputs, cache)
        by_name = dict(zip(self.names, weights, strict=True))
        return Form.of(functional_call(self.layer, by_name, positional, named))[1]

    def weights(self, layer: nn.Module) -> list[Tensor]:
        """What its programs need of one of the model's layers; joined ones are laid together, if they were not."""
        tensors = dict(itertools.chain(layer.named_parameters(), layer.named_buffers()))
        together = [[tensors[name] for name in names] for names in self.model_names]
        return [laid_together(parts) if len(parts) > 1 else parts[0].detach() for parts in together]

    def examples(self, width: int, room: int = LEAST_ROOM) -> list[Tensor]:
        """Arguments of a call over `width` tokens: arbitrary numbers, on the device."""
        open_sizes: dict[int | str, int | str] = {COUNT: width, ROOM: room}
        with torch.device(self.device):
            inputs = [
                torch.zeros([open_sizes.get(size, size) for size in sizes], dtype=dtype)
                for sizes, dtype in zip(self.sizes, self.dtypes, strict=True)
            ]
            kv = [torch.zeros(1, heads, room, size, dtype=self.kv_dtype) for heads, size in self.kv_shapes]
            tensors = dict(itertools.chain(self.layer.named_parameters(), self.layer.named_buffers()))
            weights = [torch.zeros_like(tensors[name], device=self.device, requires_grad=False) for name in self.names]
            return [*inputs, torch.arange(3, 3 + width), *kv, *weights]

    def exported(self, one_token: bool) -> ExportedProgram:
        """The layer as a graph of operations for any room. one_token: over a single token, else over any number up
        to the widest that is recorded."""
        room, count = Dim("room", min=2, max=2**31 - 1), Dim("count", min=max(2, self.fewest), max=WIDTHS[-1])
        open_sizes = {ROOM: room} if one_token else {ROOM: room, COUNT: count}
        dynamic: list[dict[int, Dim] | None] = [
            {place: open_sizes[size] for place, size in enumerate(sizes) if size in open_sizes} for sizes in self.sizes
        ]
        dynamic += [{} if one_token else {0: count}, {2: room}, {2: room}, *[None] * len(self.names)]
        with torch.no_grad():
            examples = tuple(self.examples(1 if one_token else TRACED[0][0] + self.fewest - 1))
            return torch.export.export(_Traced(self), examples, dynamic_shapes=(tuple(dynamic),), strict=False)


class _Traced(nn.Module):
    """A `LayerCode` as torch.export takes it."""

    def __init__(self, code: LayerCode):
        super().__init__()
        self.code = code

    def forward(self, *arguments: Tensor) -> list[Tensor]:
        return self.code(*arguments)


def _code(static: StaticPass, layer: nn.Module, both: tuple[Seen, Seen]) -> LayerCode:
    """The code of this layer, which two passes called so. Raises SpecvizError (field ``passes``) if it has none."""
    first, second = both
    same = first.call == second.call and first.result == second.result and first.together == second.together
    if not same or len(first.tensors) != len(second.tensors):
        raise SpecvizError("Its layers are not called in the same way in all passes.", "passes")
    place = _place(layer)
    held = None if first.cache is None else first.cache.layers[place]
    if not isinstance(held, StaticLayer):
        raise _without_kv()
    template = without_weights(layer)
    attention = static.original.config.get_text_config()._attn_implementation
    if static.original._supports_attention_backend and attention in (GROUPED, "sdpa"):
        attending_by(template, FEW_QUERIES)
    joined: dict[str, tuple[str, ...]] = {}
    for together in joinable(layer, first.together, shared_weights(static.model)):
        joined |= join(template, together)
    names = [name for name, _ in itertools.chain(template.named_parameters(), template.named_buffers())]
    block = static.fewest - 1
    sizes = tuple([sizes_of(*tensors, block) for tensors in zip(first.tensors, second.tensors, strict=True)])
    dtypes = tuple(tensor.dtype for tensor in first.tensors)
    kv_shapes = tuple(tuple(part.shape[1::2]) for part in (held.keys, held.values))
    forms = first.call, first.result, sizes, dtypes, kv_shapes, held.keys.dtype, static.fewest
    facts = _description(layer), attention, static.original._supports_attention_backend, forms, static.device
    return LayerCode(
        template,
        place,
        first.call,
        first.result,
        sizes,
        dtypes,
        kv_shapes,
        held.keys.dtype,
        static.fewest,
        static.device,
        tuple(names),
        tuple(joined.get(name, (name,)) for name in names),
        repr((facts, sorted(joined.items()))),
    )


def _place(layer: nn.Module) -> int:
    """Which of the cache's layers holds this layer's keys and values. Raises SpecvizError (field ``passes``)."""
    places = {part.layer_idx for part in layer.modules() if hasattr(part, "layer_idx")}
    if len(places) != 1:
        raise _without_kv()
    return places.pop()


def _without_kv() -> SpecvizError:
    return SpecvizError("Its layers have no keys and values of their own.", "passes")


def _description(layer: nn.Module) -> str:
    """All that the code of a layer depends on: classes, settings, sizes; not its place."""
    facts: list[object] = []
    for name, part in layer.named_modules():
        plain = {key: value for key, value in vars(part).items() if isinstance(value, (*CONSTANTS, tuple, list))}
        settings = {key: value for key, value in sorted(plain.items()) if key[0] != "_" and key != "layer_idx"}
        functions = {key: value.__qualname__ for key, value in vars(part).items() if inspect.isfunction(value)}
        facts.append((name, type(part).__module__, type(part).__qualname__, settings, sorted(functions.items())))
        if hasattr(part, "config"):
            facts.append(part.config.to_json_string())
    tensors = itertools.chain(layer.named_parameters(), layer.named_buffers())
    text = repr((facts, [(name, tuple(tensor.shape), tensor.stride(), tensor.dtype) for name, tensor in tensors]))
    return re.sub(" at 0x[0-9a-f]+", "", text)  # where this process happens to keep something


# Programs


@dataclass(frozen=True, eq=False)
class LayerProgram:
    """A program that is yet to be made."""

    code: LayerCode
    one_token: bool  # over a single token
    name: str  # of the model, for people

    @property
    def path(self) -> pathlib.Path:
        """Its file, named by all that it depends on."""
        device = self.code.device
        on_gpu = device.type == "cuda"
        facts = [
            torch.__version__,
            transformers.__version__,
            (torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)) if on_gpu else processor(),
            self.one_token,
            _OPTIONS[self.one_token],
            self.code.described,
            *map(inspect.getsource, (sys.modules[__name__], joined_weights, layer_calls, static_passes, model_twins)),
        ]
        return cache_folder() / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.layer"


def build(program: LayerProgram, path: pathlib.Path) -> None:
    """Compiles a layer to `path`, and runs it once from there: whatever only a run makes is kept with the rest."""
    code = program.code
    if code.device.type == "cuda":
        torch.cuda.set_device(code.device)
    graph = code.exported(program.one_token).graph_module
    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    for node in graph.graph.output_node().args[0]:
        node.meta["example_value"] = node.meta["val"]  # where Inductor looks for sizes that are left open
    with torch.no_grad():
        options = {"config_patches": _OPTIONS[program.one_token]}
        artifact = torch._inductor.standalone_compile(graph, inputs, options=options)
    artifact.save(path=str(path), format="binary")
    del artifact
    run = loaded(path)
    with torch.inference_mode():
        for width in (1,) if program.one_token else (max(2, code.fewest), WIDTHS[-1]):
            run(*code.examples(width))


def loaded(path: pathlib.Path) -> Program:
    """The program in a file. Raises whatever torch does if it cannot be read."""
    # Where those who made it keep what they compile. torch has set this when it was imported, to a folder that is named
    # after the user, in the system's temporary one, where anybody may have made it.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_folder() / "inductor")
    # In this thread: the kernels are there, and a process for each core would only take memory.
    with torch._inductor.config.patch(compile_threads=1):
        return torch._inductor.CompiledArtifact.load(path=str(path), format="binary")


# A pass by its layers


class CompiledLayer:
    """A layer's ``forward``: by programs wherever it is called as they were made for, else its own."""

    def __init__(self, layer: nn.Module, code: LayerCode, place: int, programs: Mapping[bool, Program]):
        self.layer, self.code, self.place, self.programs = layer, code, place, programs
        self.weights = code.weights(layer)

    def __call__(self, *arguments: object, **named: object) -> object:
        form, tensors, cache = Form.of((arguments, named))
        held = cache.layers[self.place] if cache is not None and form == self.code.call else None
        if not isinstance(held, StaticLayer) or len(held.where) > WIDTHS[-1]:
            return type(self.layer).forward(self.layer, *arguments, **named)
        run = self.programs[len(held.where) == 1]
        inputs = [tensor.contiguous() for tensor in tensors]
        return self.code.result.filled(run(*inputs, held.where, held.keys, held.values, *self.weights))


class LayeredPass:
    """A pass whose layers can be compiled. From now on weights of its layers that are read together lie together, so
    whatever holds on to their places has to be made afterwards.

    Raises SpecvizError (field ``passes``) if its layers are no functions of tensors.
    """

    def __init__(self, static: StaticPass):
        self.static = static.on_twin(sharing_twin(static.model))
        layers = [part for part in self.static.model.modules() if isinstance(part, GradientCheckpointingLayer)]
        try:
            first, second = (seen_calls(self.static, layers, *traced) for traced in TRACED)
            # Those that read pictures are not called.
            self.layers = [layer for layer in layers if layer in first and layer in second]
            self.codes = list(self._codes([(first[layer], second[layer]) for layer in self.layers]))
            pickle.dumps(self.codes)
        except (SpecvizError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            # An architecture may do anything in its layers.
            raise SpecvizError(
                "The layers of {name} cannot be compiled: {reason}.",
                "passes",
                name=static.name,
                reason=first_line(error),
            ) from error
        if not self.layers:
            raise SpecvizError("It has no decoder layers of the kind that transformers builds.", "passes")
        for layer, code in zip(self.layers, self.codes, strict=True):
            code.weights(layer)

    def _codes(self, both: Sequence[tuple[Seen, Seen]]) -> Iterator[LayerCode]:
        """The code of each layer, the same object for all of a kind. both: its calls in two passes."""
        kinds: dict[str, LayerCode] = {}
        for layer, seen in zip(self.layers, both, strict=True):
            code = _code(self.static, layer, seen)
            yield kinds.setdefault(code.described, code)

    def programs(self) -> list[LayerProgram]:
        """What has to be made, or was: two programs for each kind of layer, or one if no pass reads a single token."""
        kinds = {id(code): code for code in self.codes}
        return [
            LayerProgram(code, one_token, self.static.name)
            for one_token in (True, False)
            for code in kinds.values()
            if not one_token or code.fewest == 1
        ]

    def compiled(self) -> StaticPass:
        """The pass by its programs, which are loaded. Raises SpecvizError (field ``passes``) if they do not load."""
        programs: dict[int, dict[bool, Program]] = {}
        try:
            for program in self.programs():
                programs.setdefault(id(program.code), {})[program.one_token] = loaded(program.path)
        except Exception as error:
            # Of another version, or half a file: torch's readers raise anything.
            raise SpecvizError(
                "The compiled layers of {name} cannot be loaded: {reason}.",
                "passes",
                name=self.static.name,
                reason=first_line(error),
            ) from error
        for layer, code in zip(self.layers, self.codes, strict=True):
            layer.forward = CompiledLayer(layer, code, _place(layer), programs[id(code)])
        return self.static
