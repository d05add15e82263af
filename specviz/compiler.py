"""Compiles passes over static buffers to machine code, once a machine: torch.export, then AOTInductor.

Two programs a model: for one token, as plain decoding and drafting read, and for any number above. Each is made by a
process of its own at low priority, kept in a folder, and afterwards loaded in a fraction of a second.
`python -m specviz.compiler JOB` is that process.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import psutil
import torch
import transformers
from torch import Tensor
from torch.export import Dim

from specviz.catalog import in_words
from specviz.errors import SpecvizError
from specviz.static import WIDEST, Static

#: How Inductor is to compile: weights folded in and laid out as the kernels want them, products by its own C++
#: templates, which are made for few rows. Choosing among several by timing them would take twice as long.
OPTIONS = {
    "freezing": True,
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP",
}

#: Programs hold the weights in their own layout: memory for so many copies must be free, and disk for as many.
COPIES = 2

#: The most bytes of programs that are kept; those unused for longest go first.
KEPT_BYTES = 4 << 30

#: Tokens of the examples with which programs are traced and tried.
ONE, SEVERAL = 1, 5

_NICENESS = 10

#: Seconds between two looks at whether a program is still wanted.
_LOOK_SECONDS = 0.2


class Program:
    """A loaded pair of programs: `StaticPass.forward` of one model, compiled."""

    def __init__(self, files: dict[int, pathlib.Path]):
        # Kept as it is: calling the wrapper torch puts around it reads the shapes of all arguments anew each time.
        self.loaders = {width: torch._inductor.aoti_load_package(str(path)).loader for width, path in files.items()}

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        width = ONE if arguments[0].shape[0] == ONE else SEVERAL
        return self.loaders[width].run(arguments)


def build(static: Static, width: int, path: pathlib.Path) -> None:
    """Writes the program for one token, or for several, to `path`."""
    room = Dim("room", min=2, max=2**31 - 1)
    count = {} if width == ONE else {0: Dim("count", min=2, max=WIDEST)}
    others = (*(count for _ in static.input_widths), *({2: room} for _ in static.row_shapes))
    with torch.no_grad():
        program = torch.export.export(
            static,
            static.examples(width),
            dynamic_shapes={
                "token_ids": count,
                "positions": count,
                "where": count,
                "visible": {**count, 1: room},
                "others": others,
            },
            strict=False,
        )
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=OPTIONS)


def key(static: Static, threads: int) -> str:
    """What a model's programs depend on: its weights, the code that runs it, the processor and the libraries."""
    digest = hashlib.sha256()
    facts = [
        torch.__version__,
        transformers.__version__,
        platform.machine(),
        _processor(),
        torch.backends.cpu.get_cpu_capability(),
        threads,
        OPTIONS,
        static.described(),
        inspect.getsource(inspect.getmodule(type(static))),
        inspect.getsource(build),
    ]
    for fact in facts:
        digest.update(repr(fact).encode())
    for name, weight in sorted(static.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """The processor by name, since programs use whatever instructions it has."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("flags"):
                return line
    return platform.processor()


def folder() -> pathlib.Path:
    """Where programs are kept: SPECVIZ_CACHE, or specviz in the user's own cache folder."""
    named = os.environ.get("SPECVIZ_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(named) if named else pathlib.Path(base) / "specviz"


def files(static: Static, threads: int) -> dict[int, pathlib.Path]:
    """Where the programs of this model lie, or will."""
    name = key(static, threads)
    return {width: folder() / f"{name}-{'one' if width == ONE else 'several'}.pt2" for width in (ONE, SEVERAL)}


def missing(paths: dict[int, pathlib.Path]) -> list[int]:
    return [width for width, path in paths.items() if not path.is_file()]


def refuse_impossible(model_bytes: int) -> None:
    """Raises SpecvizError (field ``passes``) where nothing can be compiled: no compiler, or no memory for copies."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    if not any(map(shutil.which, names)):
        raise SpecvizError(
            "There is no C++ compiler ({names}) to compile passes with: install one for faster passes.",
            "passes",
            names=", ".join(names),
        )
    needed, free = COPIES * model_bytes, psutil.virtual_memory().available
    if needed > free // 2:
        raise SpecvizError(
            "Compiled passes would hold {needed} of weights once more, and {free} of memory are free.",
            "passes",
            needed=in_words(needed),
            free=in_words(free),
        )


@dataclass(frozen=True, eq=False)
class Job:
    """A program to be made: of which pass, for one token or several, the threads it will run on, and the file."""

    static: Static
    width: int
    threads: int
    path: pathlib.Path


def compile_all(
    jobs: Sequence[Job], processes: int, halt: threading.Event
) -> Iterator[tuple[Job, SpecvizError | None]]:
    """Makes programs, several at a time; yields each job as it ends, with what went wrong if something did.

    halt: ends the processes, and the iterator, once it is set; closing the iterator sets it.
    """
    with ThreadPoolExecutor(processes) as pool:
        running = {pool.submit(_compile, job, halt): job for job in jobs}
        try:
            for ended in as_completed(running):
                error = ended.exception()
                if error is not None and not isinstance(error, SpecvizError):
                    raise error
                if halt.is_set():
                    return
                yield running[ended], error
        except BaseException:
            # Leaving the pool waits for its threads, and they for their processes.
            halt.set()
            raise


def _compile(job: Job, halt: threading.Event) -> None:
    """Raises SpecvizError (field ``passes``) with the compiler's last word. Once `halt` is set, no file is made."""
    static, path = job.static, job.path
    if halt.is_set():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A compiler that is being ended may still be writing there.
    with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as scratch:
        order, made = pathlib.Path(scratch) / "job.pt", pathlib.Path(scratch) / "made.pt2"
        torch.save((static, job.width, job.threads), order)
        environment = os.environ | {
            # Common to all: what the compiler can do is tried once.
            "TORCHINDUCTOR_CACHE_DIR": str(path.parent / "inductor"),
            "OMP_NUM_THREADS": str(job.threads),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(
                [str(pathlib.Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
            ),
        }
        said = pathlib.Path(scratch) / "said.txt"
        command = [sys.executable, "-m", "specviz.compiler", str(order), str(made)]
        status = _run(command, environment, said, halt)
        if halt.is_set():
            return
        if status or not zipfile.is_zipfile(made):
            lines = [line for line in said.read_text(errors="replace").splitlines() if line.strip()]
            raise SpecvizError(
                "Compiling a pass of {name} failed: {reason}",
                "passes",
                name=static.name,
                reason=(lines[-1] if lines else f"exit status {status}")[:300],
            )
        os.replace(made, path)


def _run(command: Sequence[str], environment: dict[str, str], said: pathlib.Path, halt: threading.Event) -> int:
    """Runs a process to its end, or until `halt` is set; returns its exit status. said: the file of its errors."""
    # Nothing is written to its input: it is closed when this process ends, however it ends (`_end_with_parent`).
    with (
        said.open("wb") as errors,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
        ) as process,
    ):
        while True:
            try:
                return process.wait(_LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                if halt.is_set():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        _kill([*_descendants(process.pid), psutil.Process(process.pid)])


def _descendants(pid: int) -> list[psutil.Process]:
    """The processes that a process started, the C++ compiler among them."""
    return psutil.Process(pid).children(recursive=True)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _end_with_parent(scratch: pathlib.Path) -> None:
    """Waits until the process that wanted the program is gone, even killed; then ends this one and leaves nothing."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    _kill(_descendants(os.getpid()))
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def forget_old(keep_bytes: int = KEPT_BYTES) -> None:
    """Removes the programs that were used longest ago, until the rest is no larger than `keep_bytes`."""
    known = sorted(folder().glob("*.pt2"), key=lambda path: path.stat().st_mtime, reverse=True)
    total = 0
    for path in known:
        total += path.stat().st_size
        if total > keep_bytes:
            path.unlink()


def main(arguments: Sequence[str]) -> None:
    """The process that compiles one program: JOB FILE."""
    order, path = map(pathlib.Path, arguments)
    threading.Thread(target=_end_with_parent, args=[order.parent], daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    # The job was written by this user's own process, a moment ago, in a folder of its own.
    static, width, threads = torch.load(order, weights_only=False)
    torch.set_num_threads(threads)
    build(static, width, path)


if __name__ == "__main__":
    main(sys.argv[1:])
