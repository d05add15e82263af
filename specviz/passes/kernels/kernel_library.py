"""Builds our C++ once a machine, and registers the kernels for few rows as operations of torch.

`torch.ops.specviz.few_rows_linear` and `few_rows_attention` run in eager mode once `load` was called; compiled programs
call the same library by its C functions (`C_SHIMS`). Further ones make and judge drafts (`chains`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from specviz.records.errors import SpecvizError

_COMPILED = ("few_rows.cpp", "chains.cpp", "judging.cpp", "shims.cpp")
_HEADERS = ("attention.h", "choices.h", "crew.h", "few_bits.h", "given.h", "grids.h", "lanes.h", "programs.h")
SOURCES = [pathlib.Path(__file__).with_name(name) for name in (*_COMPILED, *_HEADERS)]

#: For this processor only, as the library is built where it runs; SPECVIZ_MARCH names another one, whose instructions
#: this one has too, to try what runs there. Products and sums are fused only where the source says so (lanes.h).
MARCH = os.environ.get("SPECVIZ_MARCH", "native")
_FLAGS = ("-std=c++17", "-O3", f"-march={MARCH}", "-ffp-contract=off", "-pthread", "-fPIC")

#: How many files are compiled at once: the longest takes as long as all others.
_COMPILERS = 2

_OPERATIONS = torch.library.Library("specviz", "DEF")

#: Of one layer, of two, and of three that read the same inputs, which only compiled programs call.
_LINEAR = ("few_rows_linear", "few_rows_linear_two", "few_rows_linear_three")
for _count, _name in enumerate(_LINEAR, 1):
    _layers = [f"Tensor weights_{i}, Tensor scales_{i}, Tensor? bias_{i}, int outputs_{i}" for i in range(_count)]
    _OPERATIONS.define(f"{_name}(Tensor x, {', '.join(_layers)}) -> ({', '.join(_count * ['Tensor'])})")
LINEAR = tuple(getattr(torch.ops.specviz, name).default for name in _LINEAR)

_OPERATIONS.define("few_rows_attention(Tensor query, Tensor key, Tensor value, Tensor mask, float scale) -> Tensor")

_LAYER = "AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*, int64_t"

#: How compiled programs call the operations, for AOTInductor.
C_SHIMS = {
    **{
        operation: [
            f"AOTITorchError aoti_torch_cpu_{name}"
            f"({', '.join(['AtenTensorHandle', *count * [_LAYER], *count * ['AtenTensorHandle*']])})"
        ]
        for count, (name, operation) in enumerate(zip(_LINEAR, LINEAR, strict=True), 1)
    },
    torch.ops.specviz.few_rows_attention.default: [
        "AOTITorchError aoti_torch_cpu_few_rows_attention(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, "
        "AtenTensorHandle, double, AtenTensorHandle*)"
    ],
}

_loaded: list[ctypes.CDLL] = []
_loading = threading.Lock()


def cache_folder() -> pathlib.Path:
    """The folder of everything built here: SPECVIZ_CACHE, or ``specviz`` in the user's cache folder.

    Where that is closed to this process, it is a temporary folder, which ends with the process: a user may have no
    home, or somebody else's. Raises SpecvizError (field ``passes``) if there is none either.
    """
    return _lasting_folder() or pathlib.Path(_temporary_folder().name)


def lasts() -> bool:
    """True if later processes find what this one builds."""
    return _lasting_folder() is not None


def writable_folder() -> pathlib.Path:
    """`cache_folder`, made if need be. Raises SpecvizError (field ``passes``) if nothing can be written there."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise SpecvizError("Compiled passes cannot be written: {reason}", "passes", reason=str(error)) from error
    return folder


def _lasting_folder() -> pathlib.Path | None:
    named = os.environ.get("SPECVIZ_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # without a home, "~" stays
    folder = pathlib.Path(os.path.expanduser(named) if named else os.path.join(home, "specviz"))
    return folder if (named or folder.is_absolute()) and _is_open(folder) else None


def _is_open(folder: pathlib.Path) -> bool:
    """True if the folder can be made, or is there to be read: it may have been filled beforehand, and be read-only."""
    if os.path.isdir(folder):
        return os.access(folder, os.R_OK | os.X_OK)
    nearest = next(filter(os.path.lexists, folder.parents))
    return os.path.isdir(nearest) and os.access(nearest, os.W_OK)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="specviz-", ignore_cleanup_errors=True)
    except OSError as error:
        raise SpecvizError(
            "There is no folder for compiled passes: set SPECVIZ_CACHE to a writable folder.", "passes"
        ) from error
    logging.getLogger(__name__).warning(
        "Compiled passes are not kept, because no cache folder is writable. Set SPECVIZ_CACHE to a writable folder."
    )
    return folder


def processor() -> str:
    """The processor's instruction sets, all of which our builds may use; else its name."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):  # of x86 and of ARM
                return line
    return platform.processor()


def cxx() -> str:
    """The C++ compiler: CXX, or the first one found. Raises SpecvizError (field ``passes``) if there is none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    compiler = next(filter(shutil.which, names), None)
    if compiler is None:
        raise SpecvizError(
            "There is no C++ compiler ({names}): install one for faster passes.", "passes", names=", ".join(names)
        )
    return compiler


def load() -> int:
    """Makes the operations ready; builds the library if this machine has none yet, which takes a few seconds.

    Returns how many outputs a panel of weights has (few_rows.cpp). Raises SpecvizError (field ``passes``) if there is
    no C++ compiler, if it does not understand the source, or if the library cannot be written or loaded.
    """
    with _loading:
        if not _loaded:
            try:
                library = _open()
            except OSError as error:
                raise SpecvizError("Our kernels cannot be loaded: {reason}", "passes", reason=str(error)) from error
            library.few_rows_panel.restype = ctypes.c_int64
            library.few_rows_help.restype = ctypes.c_double
            library.few_rows_multiplies_bfloat16.restype = ctypes.c_bool
            for name in _LINEAR:
                _OPERATIONS.impl(name, _linear if name == _LINEAR[0] else _linears, "CPU")
            _OPERATIONS.impl("few_rows_attention", _attention, "CPU")
            _loaded.append(library)
    return _loaded[0].few_rows_panel()


def load_ahead() -> None:
    """Starts `load` in a thread of its own and raises nothing. A later `load` waits for that thread; if it failed, the
    later one tries again and raises."""

    def quietly() -> None:
        with contextlib.suppress(SpecvizError):
            load()

    threading.Thread(target=quietly, name="kernels", daemon=True).start()


def is_built() -> bool:
    """True if `load` has nothing to build on this machine."""
    return bool(_loaded) or (lasts() and _library_file().is_file())


def library() -> ctypes.CDLL:
    """The loaded library: our C functions, and torch's. Needs `load`."""
    return _loaded[0]


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
    _loaded[0].few_rows_move(number(count), rows, heads, sizes, *places, _pointer(origins))


def use_threads(count: int) -> None:
    """Lets the kernels use so many threads at most, in all of this process: fewer work while other programs want the
    cores (crew.h). Results are the same bits with any number."""
    load()
    library().few_rows_use(ctypes.c_int32(count))


def help_since() -> float:
    """The share of their work that the kernels' helping threads did since this was last asked. Needs `load`."""
    return library().few_rows_help()


def multiplies_bfloat16() -> bool:
    """True if the kernels multiply weights and inputs in bfloat16; else they multiply both as float32."""
    load()
    return library().few_rows_multiplies_bfloat16()


@functools.cache
def dtype_number(dtype: torch.dtype) -> int:
    """The dtype's number in torch's C interface. Needs `load`."""
    return library()[f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}"]()


def _open() -> ctypes.CDLL:
    path = _library_file()
    if not path.is_file():
        _build(path)
    # Global, so that compiled programs find its functions.
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _library_file() -> pathlib.Path:
    sources = [source.read_text(encoding="utf-8") for source in SOURCES]
    facts = (sources, _FLAGS, torch.__version__, platform.machine(), processor())
    return cache_folder() / f"few-rows-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.so"


def _build(path: pathlib.Path) -> None:
    writable_folder()
    torch_files = pathlib.Path(torch.__file__).parent
    sources = [source for source in SOURCES if source.suffix == ".cpp"]
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, ThreadPoolExecutor(_COMPILERS) as compilers:
        built = pathlib.Path(scratch) / path.name
        objects = [str(built.with_name(f"{source.stem}.o")) for source in sources]
        include = f"-I{torch_files / 'include'}"
        jobs = [("-c", str(source), include, "-o", made) for source, made in zip(sources, objects, strict=True)]
        list(compilers.map(lambda job: _compile(*job), jobs))  # raises what one of them raises
        _compile("-shared", *objects, "-o", str(built), f"-L{torch_files / 'lib'}", "-ltorch_cpu", "-lc10")
        os.replace(built, path)


def _compile(*arguments: str) -> None:
    english = os.environ | {"LC_ALL": "C"}  # its errors are looked for
    command = [cxx(), *_FLAGS, *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", env=english)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"status {done.returncode}"]
        raise SpecvizError("The C++ compiler failed: {reason}", "passes", reason=lines[0][-300:])


@torch.library.register_fake("specviz::few_rows_linear")
def _linear_shape(x: Tensor, *layer: Tensor | int | None) -> Tensor:
    return _linear_shapes(x, *layer)[0]


@torch.library.register_fake("specviz::few_rows_linear_two")
@torch.library.register_fake("specviz::few_rows_linear_three")
def _linear_shapes(x: Tensor, *layers: Tensor | int | None) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape[0], outputs) for outputs in layers[3::4])


@torch.library.register_fake("specviz::few_rows_attention")
def _attention_shape(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], query.shape[3])


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
        return cls(*places[:3], outputs, places[3], dtype_number(tensors[0].dtype))


def _linear(x: Tensor, *layer: Tensor | int | None) -> Tensor:
    return _linears(x, *layer)[0]


def _linears(x: Tensor, *layers: Any) -> tuple[Tensor, ...]:
    """Those of several layers (`linear`), one after the other in `layers`."""
    structs, outs = (GivenLayer * (len(layers) // 4))(), []
    for place in range(len(structs)):
        *tensors, outputs = layers[4 * place : 4 * place + 4]
        # Loading a model changes the default of all threads.
        outs.append(torch.empty(x.shape[0], outputs, dtype=torch.float32))
        structs[place] = GivenLayer.of(tensors, outputs, outs[-1])
    _loaded[0].few_rows_linear(structs, ctypes.c_int32(len(structs)), _pointer(x), *map(ctypes.c_int64, x.shape))
    return tuple(outs)


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    heads, count, size = query.shape[1:]
    out = torch.empty(1, count, heads, size, dtype=torch.float32)
    _loaded[0].few_rows_attention(
        *map(_pointer, (query, key, value, mask, out)),
        *map(ctypes.c_int64, (heads, key.shape[1], count, key.shape[2], size, query.stride(1), query.stride(2))),
        ctypes.c_float(scale),
    )
    return out


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
