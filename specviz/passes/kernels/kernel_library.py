"""Builds our C++ once a machine, and loads it: `operations` of torch, and functions that make and judge drafts
(`chains`), and whole rounds (`rounds`)."""

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
from concurrent.futures import ThreadPoolExecutor

import torch

from specviz.records.errors import SpecvizError

_COMPILED = ("few_rows.cpp", "chains.cpp", "judging.cpp", "rounds.cpp", "shims.cpp")
_HEADERS = (
    "attention.h",
    "choices.h",
    "crew.h",
    "few_bits.h",
    "gates.h",
    "given.h",
    "grids.h",
    "lanes.h",
    "programs.h",
)
SOURCES = [pathlib.Path(__file__).parent / "cpp" / name for name in (*_COMPILED, *_HEADERS)]

#: For this processor only, as the library is built where it runs; SPECVIZ_MARCH names another one, whose instructions
#: this one has too, to try what runs there. Products and sums are fused only where the source says so (lanes.h).
MARCH = os.environ.get("SPECVIZ_MARCH", "native")
_FLAGS = ("-std=c++17", "-O3", f"-march={MARCH}", "-ffp-contract=off", "-pthread", "-fPIC")

#: How many files are compiled at once: the longest takes as long as all others.
_COMPILERS = 2

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
    """Makes the library ready; builds the library if this machine has none yet, which takes a few seconds.

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
            library.few_rows_forget.argtypes = [ctypes.c_void_p]
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
