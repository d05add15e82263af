"""The kernels for few rows as operations of torch.

`linear` and `attention` run in eager mode once `kernel_library.load` was called; a program that is made of them calls
the same library by its C functions (`C_SHIMS`). `joining` puts several into one of `LINEAR` or `GATED`, and adds
`COPY`; these run in eager mode as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specviz.passes.kernels import kernel_library

_OPERATIONS = torch.library.Library("specviz", "DEF")

#: Of one layer, of two, and of three that read the same inputs.
_LINEAR = ("few_rows_linear", "few_rows_linear_two", "few_rows_linear_three")
_LAYERS = [f"Tensor weights_{i}, Tensor scales_{i}, Tensor? bias_{i}, int outputs_{i}" for i in range(len(_LINEAR))]
for _count, _name in enumerate(_LINEAR, 1):
    _OPERATIONS.define(f"{_name}(Tensor x, {', '.join(_LAYERS[:_count])}) -> ({', '.join(_count * ['Tensor'])})")
LINEAR = tuple(getattr(torch.ops.specviz, name).default for name in _LINEAR)

#: Of two layers: SiLU of the first one's outputs, or GELU by its hyperbolic tangent, times the second one's.
_OPERATIONS.define(f"few_rows_gated(Tensor x, {', '.join(_LAYERS[:2])}, bool tanh) -> Tensor")
GATED = torch.ops.specviz.few_rows_gated.default

#: A copy of numbers in float32. Inductor computes what it reads once, as it knows nothing of this operation.
_OPERATIONS.define("few_rows_copy(Tensor x) -> Tensor")
COPY = torch.ops.specviz.few_rows_copy.default

_OPERATIONS.define("few_rows_attention(Tensor query, Tensor key, Tensor value, Tensor mask, float scale) -> Tensor")
_ATTENTION = torch.ops.specviz.few_rows_attention.default


def _shim(name: str, *arguments: str, outputs: int = 1) -> list[str]:
    given = ", ".join((*arguments, *outputs * ["AtenTensorHandle*"]))
    return [f"AOTITorchError aoti_torch_cpu_{name}({given})"]


_TENSOR, _LAYER = "AtenTensorHandle", ("AtenTensorHandle", "AtenTensorHandle", "AtenTensorHandle*", "int64_t")

#: How compiled programs call the operations, for AOTInductor.
C_SHIMS = {
    **{
        operation: _shim(name, _TENSOR, *count * _LAYER, outputs=count)
        for count, (name, operation) in enumerate(zip(_LINEAR, LINEAR, strict=True), 1)
    },
    GATED: _shim("few_rows_gated", _TENSOR, *2 * _LAYER, "int32_t"),
    COPY: _shim("few_rows_copy", _TENSOR),
    _ATTENTION: _shim("few_rows_attention", *4 * [_TENSOR], "double"),
}


class GivenLayer(ctypes.Structure):
    """`Given` of given.h."""

    _fields_ = [
        ("weights", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
    ]

    @classmethod
    def of(cls, tensors: Sequence[Any], outputs: int, out: Tensor | None = None) -> GivenLayer:
        """tensors: weights, scales and bias, see `FewRowsLinear`. out: [n, outputs] float32."""
        places = [None if tensor is None else tensor.data_ptr() for tensor in (*tensors, out)]
        return cls(*places[:3], outputs, places[3], kernel_library.dtype_number(tensors[0].dtype))


def linear(x: Tensor, *layer: Tensor | int | None) -> Tensor:
    """[n, inputs] float32, contiguous -> [n, outputs]. layer: weights, scales (see `FewRowsLinear`), bias, outputs.

    An operation only where a program is made of it: through torch's dispatch to Python a call takes half as long again.
    """
    if torch.compiler.is_compiling():
        return torch.ops.specviz.few_rows_linear(x, *layer)
    return _linear(x, *layer)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """[1, heads, n, size] -> [1, n, heads, size], all in float32.

    key, value: [1, shared heads, room, size], contiguous. mask: [1, 1, n, room], contiguous; 0 where a token sees a
    place, and it sees no other.
    """
    if torch.compiler.is_compiling():
        return torch.ops.specviz.few_rows_attention(query, key, value, mask, scale)
    return _attention(query, key, value, mask, scale)


def move(tensors: Sequence[Tensor], start: int, origins: Tensor) -> None:
    """Moves what lies at the places `origins` [k] int64 to those from `start` on.

    tensors: keys and values, [1, heads, room, head size] float32 each, contiguous. origins: ascending, from `start` on
    or later.
    """
    count, number = len(tensors), ctypes.c_int64
    rows = (ctypes.c_void_p * count)(*[tensor.data_ptr() for tensor in tensors])
    heads, sizes = ((number * count)(*[tensor.shape[dim] for tensor in tensors]) for dim in (1, 3))
    places = map(number, (tensors[0].shape[2], start, len(origins)))
    kernel_library.library().few_rows_move(number(count), rows, heads, sizes, *places, _pointer(origins))


@torch.library.impl(_OPERATIONS, "few_rows_linear", "CPU")
def _linear(x: Tensor, *layer: Tensor | int | None) -> Tensor:
    return _linears(x, *layer)[0]


@torch.library.impl(_OPERATIONS, "few_rows_linear_two", "CPU")
@torch.library.impl(_OPERATIONS, "few_rows_linear_three", "CPU")
def _linears(x: Tensor, *layers: Any) -> tuple[Tensor, ...]:
    """Those of several layers (`linear`), one after the other in `layers`."""
    structs, outs = (GivenLayer * (len(layers) // 4))(), []
    for place in range(len(structs)):
        *tensors, outputs = layers[4 * place : 4 * place + 4]
        outs.append(_empty(x.shape[0], outputs))
        structs[place] = GivenLayer.of(tensors, outputs, outs[-1])
    sizes = map(ctypes.c_int64, x.shape)
    kernel_library.library().few_rows_linear(structs, ctypes.c_int32(len(structs)), _pointer(x), *sizes)
    return tuple(outs)


@torch.library.impl(_OPERATIONS, "few_rows_gated", "CPU")
def _gated(x: Tensor, *layers_and_tanh: Any) -> Tensor:
    *layers, tanh = layers_and_tanh
    out = _empty(x.shape[0], layers[3])
    structs = (GivenLayer * 2)(GivenLayer.of(layers[:3], layers[3], out), GivenLayer.of(layers[4:7], layers[7]))
    sizes = map(ctypes.c_int64, x.shape)
    kernel_library.library().few_rows_gated(structs, ctypes.c_bool(tanh), _pointer(x), *sizes)
    return out


@torch.library.impl(_OPERATIONS, "few_rows_copy", "CPU")
def _copy(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.impl(_OPERATIONS, "few_rows_attention", "CPU")
def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    heads, count, size = query.shape[1:]
    out = _empty(1, count, heads, size)
    kernel_library.library().few_rows_attention(
        *map(_pointer, (query, key, value, mask, out)),
        *map(ctypes.c_int64, (heads, key.shape[1], count, key.shape[2], size, query.stride(1), query.stride(2))),
        ctypes.c_float(scale),
    )
    return out


def _empty(*shape: int) -> Tensor:
    # Loading a model changes the default of all threads.
    return torch.empty(shape, dtype=torch.float32)


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@torch.library.register_fake("specviz::few_rows_linear")
def _linear_shape(x: Tensor, *layer: Tensor | int | None) -> Tensor:
    return _linear_shapes(x, *layer)[0]


@torch.library.register_fake("specviz::few_rows_linear_two")
@torch.library.register_fake("specviz::few_rows_linear_three")
def _linear_shapes(x: Tensor, *layers: Tensor | int | None) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape[0], outputs) for outputs in layers[3::4])


@torch.library.register_fake("specviz::few_rows_gated")
def _gated_shape(x: Tensor, *layers_and_tanh: Any) -> Tensor:
    return x.new_empty(x.shape[0], layers_and_tanh[3])


@torch.library.register_fake("specviz::few_rows_copy")
def _copy_shape(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("specviz::few_rows_attention")
def _attention_shape(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], query.shape[3])
