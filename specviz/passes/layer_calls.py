"""Decoder layers as functions of tensors, whatever their family calls its arguments.

How a model calls its layers is taken down from passes of it: which tensors go in and come out, and what else. A whole
pass can be such a layer, too.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call
from torch.utils import _pytree as pytree
from transformers import Cache
from transformers.cache_utils import DummyLayer

from specviz.passes.cuda_graphs import WIDTHS
from specviz.passes.fast_passes import LEAST_ROOM
from specviz.passes.joined_weights import join, joinable, laid_together
from specviz.passes.model_twins import FEW_QUERIES, GROUPED, attending_by, shared_weights, without_weights
from specviz.passes.static_passes import ROOM_STEP, StaticLayer, StaticPass
from specviz.records.errors import SpecvizError

#: The passes that are watched, (tokens, room): where their calls differ, they depend on the one or the other.
TRACED = ((5, 2 * ROOM_STEP), (7, 3 * ROOM_STEP))

#: Sizes of a call that are those of the pass.
COUNT, ROOM = "count", "room"

#: What a call may contain beside tensors and the cache: the same in all passes, so it is a part of the code.
CONSTANTS = (type(None), bool, int, float, str, torch.dtype)


class Form(NamedTuple):
    """What a call of a layer is made of, or its result, apart from its tensors and the cache."""

    shape: pytree.TreeSpec
    leaves: tuple[object, ...]  # constants; `Tensor` and `Cache` stand for what differs from call to call

    @classmethod
    def of(cls, content: object) -> tuple[Form, list[Tensor], Cache | None]:
        """The form, tensors and cache of ``(arguments, named arguments)``, or of a result.

        Raises SpecvizError (field ``passes``) if there is anything else.
        """
        leaves, shape = pytree.tree_flatten(content)
        kinds, tensors, cache = [], [], None
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                tensors.append(leaf)
                kinds.append(Tensor)
            elif isinstance(leaf, Cache):
                cache = leaf
                kinds.append(Cache)
            elif isinstance(leaf, CONSTANTS):
                kinds.append(leaf)
            else:
                raise SpecvizError(
                    "Its layers take arguments other than tensors ({kind}).", "passes", kind=type(leaf).__qualname__
                )
        return cls(shape, tuple(kinds)), tensors, cache

    def filled(self, tensors: Sequence[Tensor], cache: Cache | None = None) -> Any:
        """What it is the form of, with these tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is Tensor else cache if leaf is Cache else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.shape)


class Seen(NamedTuple):
    """One call of a layer, and what happened in it."""

    call: Form
    tensors: list[Tensor]
    cache: Cache | None
    result: Form
    together: tuple[tuple[str, ...], ...]  # names of linear layers that read the same


class WholePass(nn.Module):
    """A pass as one layer: with embeddings, mask, rotary positions and output head. Called as `StaticPass` is."""

    #: What the pass itself looks up.
    _FACTS = ("input_widths", "caching", "dtype", "inner_dtype", "feature_layers", "window", "slides")

    def __init__(self, static: StaticPass):
        super().__init__()
        self.__dict__.update({name: getattr(static, name) for name in self._FACTS})
        self.model = static.model

    forward, _masks = StaticPass.forward, StaticPass._masks


@torch.inference_mode()
def seen_calls(run: nn.Module, layers: Sequence[nn.Module], arguments: Sequence[Tensor]) -> dict[nn.Module, Seen]:
    """The call of each layer that is called in a pass. run: the pass, on a twin of its own, or its `WholePass`.

    Raises SpecvizError (field ``passes``) if a layer is given anything that `Form` cannot hold.
    """
    seen: dict[nn.Module, Seen] = {}

    def watched(layer: nn.Module, *arguments: object, **named: object) -> object:
        read: dict[int, tuple[Tensor, list[str]]] = {}  # inputs, kept so that no other tensor gets their `id`

        def note(name: str, part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            read.setdefault(id(inputs[0]), (inputs[0], []))[1].append(name)

        linear = [(name, part) for name, part in layer.named_modules() if type(part) is nn.Linear]
        hooks = [part.register_forward_pre_hook(functools.partial(note, name)) for name, part in linear]
        try:
            result = type(layer).forward(layer, *arguments, **named)
        finally:
            for hook in hooks:
                hook.remove()
        groups = tuple(tuple(names) for _, names in read.values() if len(names) > 1)
        seen[layer] = Seen(*Form.of((arguments, named)), Form.of(result)[0], groups)
        return result

    for layer in layers:
        layer.forward = functools.partial(watched, layer)
    try:
        run(*arguments)
    finally:
        for layer in layers:
            del layer.forward
    return seen


def sizes_of(first: Tensor, second: Tensor, block: int = 0) -> tuple[int | str, ...]:
    """The sizes of a tensor that two passes were given (`TRACED`), each with `block` tokens more. Raises SpecvizError
    (field ``passes``) if they depend on anything but tokens and room."""
    counts, rooms = zip(*TRACED)
    open_sizes = {tuple(count + block for count in counts): COUNT, rooms: ROOM}
    depends: list[int | str] = []
    for sizes in zip(first.shape, second.shape, strict=True):
        if sizes[0] == sizes[1]:
            depends.append(sizes[0])
        elif sizes in open_sizes:
            depends.append(open_sizes[sizes])
        else:
            raise SpecvizError("Its layers are not called in the same way in all passes.", "passes")
    return tuple(depends)


# One kind of layer


@dataclass(frozen=True, eq=False)
class LayerCode:
    """A kind of decoder layer as a function of tensors alone: ``code(*inputs, where, keys, values, *weights)``; or a
    whole pass, one of whose inputs is `where`: ``code(*inputs, *kv, *weights)``.

    layer: one of the kind, without weights, its attention for few queries and its products joined.
    """

    layer: nn.Module
    place: int | None  # among the cache's layers; None: a whole pass
    call: Form
    result: Form
    sizes: tuple[tuple[int | str, ...], ...]  # of each input of the call, apart from keys and values
    dtypes: tuple[torch.dtype, ...]
    kv_shapes: tuple[tuple[int, ...], ...]  # (heads, head size) of keys and of values
    kv_dtype: torch.dtype
    fewest: int  # tokens of a pass
    device: torch.device
    names: tuple[str, ...]  # of weights and buffers of `layer`
    model_names: tuple[tuple[str, ...], ...]  # the model's names of the tensors that are joined in each of these
    described: str = field(repr=False)  # all that its program depends on, apart from torch

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        given = len(arguments) - len(self.names)
        inputs: Sequence[Tensor] = arguments[:given]
        weights, cache = arguments[given:], None
        if self.place is not None:
            *inputs, where, keys, values = inputs
            cache = Cache(layers=[*[DummyLayer()] * self.place, StaticLayer(keys, values, where)])
        positional, named = self.call.filled(inputs, cache)
        by_name = dict(zip(self.names, weights, strict=True))
        return Form.of(functional_call(self.layer, by_name, positional, named, tie_weights=False))[1]

    def weights(self, layer: nn.Module) -> list[Tensor]:
        """What its programs need of one of the model's layers; joined ones are laid together, if they were not."""
        tensors = _tensors_of(layer)
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
            tensors = _tensors_of(self.layer)
            weights = [torch.zeros_like(tensors[name], device=self.device, requires_grad=False) for name in self.names]
            where = [] if self.place is None else [torch.arange(3, 3 + width)]
            return [*inputs, *where, *kv, *weights]

    def exported(self, one_token: bool) -> ExportedProgram:
        """The layer as a graph of operations for any room. one_token: over a single token, else over any number up
        to the widest that is recorded."""
        room, count = Dim("room", min=2, max=2**31 - 1), Dim("count", min=max(2, self.fewest), max=WIDTHS[-1])
        open_sizes = {ROOM: room} if one_token else {ROOM: room, COUNT: count}
        dynamic: list[dict[int, Dim] | None] = [
            {place: open_sizes[size] for place, size in enumerate(sizes) if size in open_sizes} for sizes in self.sizes
        ]
        where: list[dict[int, Dim] | None] = [] if self.place is None else [{} if one_token else {0: count}]
        dynamic += [*where, *[{2: room}] * len(self.kv_shapes), *[None] * len(self.names)]
        with torch.no_grad():
            examples = tuple(self.examples(1 if one_token else TRACED[0][0] + self.fewest - 1))
            return torch.export.export(_Traced(self), examples, dynamic_shapes=(tuple(dynamic),), strict=False)


def _tensors_of(layer: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers of all its modules. A tensor that several modules share is listed for each of them. A
    module that is in several places is listed once, or `functional_call` would leave the given tensors in it."""
    parts = ((place, part._parameters | part._buffers) for place, part in layer.named_modules())
    return {
        f"{place}.{name}".lstrip("."): tensor
        for place, tensors in parts
        for name, tensor in tensors.items()
        if tensor is not None
    }


class _Traced(nn.Module):
    """A `LayerCode` as torch.export takes it."""

    def __init__(self, code: LayerCode):
        super().__init__()
        self.code = code

    def forward(self, *arguments: Tensor) -> list[Tensor]:
        return self.code(*arguments)


def code_of(static: StaticPass, layer: nn.Module, both: tuple[Seen, Seen]) -> LayerCode:
    """The code of this layer, which two passes called so. Raises SpecvizError (field ``passes``) if it has none."""
    first, second = both
    same = first.call == second.call and first.result == second.result and first.together == second.together
    if not same or len(first.tensors) != len(second.tensors):
        raise SpecvizError("Its layers are not called in the same way in all passes.", "passes")
    place, kv, inputs = place_of(layer), _kv_of(static, layer, first), len(first.tensors)
    if place is None:
        inputs -= len(kv)
    template = without_weights(layer)
    attention = static.original.config.get_text_config()._attn_implementation
    if static.original._supports_attention_backend and attention in (GROUPED, "sdpa"):
        attending_by(template, FEW_QUERIES)
    joined: dict[str, tuple[str, ...]] = {}
    for together in joinable(layer, first.together, shared_weights(static.model)):
        joined |= join(template, together)
    names = list(_tensors_of(template))
    block = static.fewest - 1
    tensors = zip(first.tensors[:inputs], second.tensors[:inputs], strict=True)
    sizes = tuple([sizes_of(*seen, block) for seen in tensors])
    dtypes = tuple(tensor.dtype for tensor in first.tensors[:inputs])
    kv_shapes = tuple(tuple(part.shape[1::2]) for part in kv)
    forms = first.call, first.result, sizes, dtypes, kv_shapes, kv[0].dtype, static.fewest
    facts = _description(layer), attention, static.original._supports_attention_backend, forms, static.device
    return LayerCode(
        template,
        place,
        first.call,
        first.result,
        sizes,
        dtypes,
        kv_shapes,
        kv[0].dtype,
        static.fewest,
        static.device,
        tuple(names),
        tuple(joined.get(name, (name,)) for name in names),
        repr((facts, sorted(joined.items()))),
    )


def _kv_of(static: StaticPass, layer: nn.Module, seen: Seen) -> Sequence[Tensor]:
    """The keys and values with which it was called. Raises SpecvizError (field ``passes``) if there are none."""
    if (place := place_of(layer)) is None:
        return seen.tensors[len(seen.tensors) - len(static.kv_shapes) :]
    held = None if seen.cache is None else seen.cache.layers[place]
    if not isinstance(held, StaticLayer):
        raise _without_kv()
    return held.keys, held.values


def place_of(layer: nn.Module) -> int | None:
    """Which of the cache's layers holds this layer's keys and values; None: a whole pass is given all of them. Raises
    SpecvizError (field ``passes``)."""
    if isinstance(layer, WholePass):
        return None
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
        module = type(part).__module__
        source = inspect.getsource(sys.modules[module]) if module.startswith("specviz.") else ""
        facts.append((name, module, type(part).__qualname__, source, settings, sorted(functions.items())))
        if hasattr(part, "config"):
            facts.append(part.config.to_json_string())
    tensors = itertools.chain(layer.named_parameters(), layer.named_buffers())
    text = repr((facts, [(name, tuple(tensor.shape), tensor.stride(), tensor.dtype) for name, tensor in tensors]))
    return re.sub(" at 0x[0-9a-f]+", "", text)  # where this process happens to keep something
