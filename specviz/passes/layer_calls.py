"""How a model calls its decoder layers, taken down from passes of it: which tensors go in and come out, and what else.

So a layer becomes a function of tensors, whatever its family calls its arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers import Cache

from specviz.passes.static_passes import ROOM_STEP, StaticPass
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


@torch.inference_mode()
def seen_calls(static: StaticPass, layers: Sequence[nn.Module], width: int, room: int) -> dict[nn.Module, Seen]:
    """The call of each layer that is called in a pass over `width` tokens. static: on a twin of its own.

    Raises SpecvizError (field ``passes``) if a layer is given anything that `Form` cannot hold.
    """
    seen: dict[nn.Module, Seen] = {}
    arguments = [argument.to(static.device) for argument in static.examples(width, room)]

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
        static(*arguments)
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
