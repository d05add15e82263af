"""Compiles a model's passes decoder layer by decoder layer, where they are recorded as CUDA graphs afterwards.

All layers of one kind are the same code on other weights, so two programs serve all of them: one for passes over one
token, whose products are streams of weights, and one for passes over several. Both leave the buffers' room open.
Inductor makes them from a graph of the layer, whose weights are among the inputs, and puts each into a file that loads
in a moment. What is around the layers stays transformers' own code, except in models of a single one: around it
there are more small kernels than in it, so the whole pass is compiled as a layer.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import pathlib
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from specviz.passes import joined_weights, layer_calls, model_twins, static_passes
from specviz.passes.cuda_graphs import WIDTHS
from specviz.passes.kernels.kernel_library import cache_folder, cxx, processor
from specviz.passes.layer_calls import TRACED, Form, LayerCode, Seen, WholePass, code_of, place_of, seen_calls
from specviz.passes.model_twins import sharing_twin
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
    """A layer's ``forward``: by programs wherever it is called as they were made for, else its own. place: as of
    `place_of`."""

    def __init__(self, layer: nn.Module, code: LayerCode, place: int | None, programs: Mapping[bool, Program]):
        self.layer, self.code, self.place, self.programs = layer, code, place, programs
        self.weights = code.weights(layer)

    def __call__(self, *arguments: object, **named: object) -> object:
        form, tensors, cache = Form.of((arguments, named))
        held = self._held(tensors, cache) if form == self.code.call else None
        if held is None or (count := len(held[0])) > WIDTHS[-1]:
            return type(self.layer).forward(self.layer, *arguments, **named)
        run, inputs = self.programs[count == 1], [tensor.contiguous() for tensor in tensors[: len(self.code.sizes)]]
        return self.code.result.filled(run(*inputs, *held[self.place is None :], *self.weights))

    def _held(self, tensors: Sequence[Tensor], cache: Cache | None) -> Sequence[Tensor] | None:
        """The places of its tokens, then the keys and values that it works on."""
        if self.place is None:
            return tensors[0], *tensors[len(self.code.sizes) :]
        held = None if cache is None else cache.layers[self.place]
        return (held.where, held.keys, held.values) if isinstance(held, StaticLayer) else None


class LayeredPass:
    """A pass whose layers can be compiled. From now on weights of its layers that are read together lie together, so
    whatever holds on to their places has to be made afterwards.

    Raises SpecvizError (field ``passes``) if its layers are no functions of tensors.
    """

    def __init__(self, static: StaticPass):
        self.static = static.on_twin(sharing_twin(static.model))
        layers = [part for part in self.static.model.modules() if isinstance(part, GradientCheckpointingLayer)]
        run: nn.Module = self.static
        if len(layers) == 1:
            layers = [run := WholePass(self.static)]
        try:
            first, second = (seen_calls(run, layers, self._arguments(*traced)) for traced in TRACED)
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

    def _arguments(self, width: int, room: int) -> list[Tensor]:
        """Of a pass over `width` tokens."""
        return [argument.to(self.static.device) for argument in self.static.examples(width, room)]

    def _codes(self, both: Sequence[tuple[Seen, Seen]]) -> Iterator[LayerCode]:
        """The code of each layer, the same object for all of a kind. both: its calls in two passes."""
        kinds: dict[str, LayerCode] = {}
        for layer, seen in zip(self.layers, both, strict=True):
            code = code_of(self.static, layer, seen)
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
            called: nn.Module = self.static if isinstance(layer, WholePass) else layer
            called.forward = CompiledLayer(layer, code, place_of(layer), programs[id(code)])
        return self.static
