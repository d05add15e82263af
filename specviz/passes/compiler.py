"""Compiles passes over static buffers to machine code, once a machine: torch.export, then AOTInductor.

One program a model reads any number of tokens; the target, which plain decoding feeds one by one, has another for that.
They are made by processes of low priority, kept in a folder, and afterwards loaded in a fraction of a second.
`python -m specviz.passes.compiler FOLDER` is such a process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import os
import pathlib
import platform
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import psutil
import torch
import transformers
from torch import Tensor
from torch.export import Dim, ExportedProgram

from specviz.passes.static_passes import WIDEST, Static
from specviz.records.errors import SpecvizError
from specviz.records.words import bytes_in_words

#: How Inductor is to compile: weights folded in and laid out as the kernels want them, products by its own C++
#: templates, which are made for few rows. Choosing among several by timing them would take twice as long. That the C++
#: compiler has heard of AVX-512 is taken for granted, which saves eight seconds; what is newer is still tried.
OPTIONS = {
    "cpp.vec_isa_ok": True,
    "freezing": True,
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP",
}

#: Programs hold the weights in their own layout: memory for so many copies must be free, and disk for as many.
COPIES = 2

#: The most bytes of programs that are kept; those unused for longest go first.
KEPT_BYTES = 4 << 30

#: What a program reads: a single token, or any number of them.
ONE, ANY = "one", "any"

#: How many tokens the examples have with which programs are traced.
_EXAMPLE_TOKENS = {ONE: 1, ANY: 5}

_NICENESS = 10

#: Seconds between two looks at whether a program is made, or no longer wanted.
_LOOK_SECONDS = 0.1


class Program:
    """`StaticPass.forward` of one model, compiled. files: what was made for it, by ANY and perhaps ONE."""

    def __init__(self, files: Mapping[str, pathlib.Path]):
        # Kept as it is: calling the wrapper torch puts around it reads the shapes of all arguments anew each time.
        loaders = {kind: torch._inductor.aoti_load_package(str(path)).loader for kind, path in files.items()}
        self.any = loaders[ANY]
        self.one = loaders.get(ONE, self.any)

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        loader = self.one if arguments[0].shape[0] == 1 else self.any
        return loader.run(arguments)


def exported(static: Static, kind: str) -> ExportedProgram:
    """The pass as a graph of operations, with the number of tokens (unless it is one) and the room left open."""
    room = Dim("room", min=2, max=2**31 - 1)
    count = {} if kind == ONE else {0: Dim("count", min=1, max=WIDEST)}
    others = (*(count for _ in static.input_widths), *({2: room} for _ in static.row_shapes))
    with torch.no_grad():
        return torch.export.export(
            static,
            static.examples(_EXAMPLE_TOKENS[kind]),
            dynamic_shapes={
                "token_ids": count,
                "positions": count,
                "where": count,
                "visible": {**count, 1: room},
                "others": others,
            },
            strict=False,
        )


def build(static: Static, kind: str, path: pathlib.Path) -> None:
    """Writes the program of that kind to `path`."""
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            exported(static, kind), package_path=str(path), inductor_configs=OPTIONS
        )


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
        inspect.getsource(exported),
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


def files(static: Static, threads: int, kinds: Sequence[str]) -> dict[str, pathlib.Path]:
    """Where these programs of this model lie, or will."""
    name = key(static, threads)
    return {kind: folder() / f"{name}-{kind}.pt2" for kind in kinds}


def missing(paths: Mapping[str, pathlib.Path]) -> list[str]:
    return [kind for kind, path in paths.items() if not path.is_file()]


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
            needed=bytes_in_words(needed),
            free=bytes_in_words(free),
        )


@dataclass(frozen=True, eq=False)
class ProgramJob:
    """A program to be made: of which pass, of which kind, the threads it will run on, and its file."""

    static: Static
    kind: str
    threads: int
    path: pathlib.Path


def compile_all(
    jobs: Sequence[ProgramJob], processes: int, halt: threading.Event
) -> Iterator[tuple[ProgramJob, SpecvizError | None]]:
    """Makes programs, the first ones first; yields each job as it ends, with what went wrong if something did.

    halt: ends the processes, and the iterator, once it is set; closing the iterator sets it.
    """
    with contextlib.ExitStack() as workers, ThreadPoolExecutor(min(processes, len(jobs))) as pool:
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()

        def make(job: ProgramJob) -> None:
            if halt.is_set():
                return
            try:
                worker = idle.get_nowait()
            except queue.Empty:
                worker = workers.enter_context(Worker())
            try:
                worker.make(job, halt)
            finally:
                if worker.process.poll() is None:
                    idle.put(worker)

        running = {pool.submit(make, job): job for job in jobs}
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


class Worker:
    """A process of low priority that makes one program after the other, within a scratch folder; a context.

    Loading torch and asking what the C++ compiler can do takes it as long as a small program, so it is kept.
    """

    def __init__(self) -> None:
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        # A compiler that is being ended may still be writing there.
        self._scratch = tempfile.TemporaryDirectory(dir=folder(), ignore_cleanup_errors=True)
        scratch = pathlib.Path(self._scratch.name)
        self.orders = (scratch / f"{number}.pt" for number in itertools.count())
        self.said = scratch / "said.txt"
        environment = os.environ | {
            # Common to all: what the compiler can do is tried once.
            "TORCHINDUCTOR_CACHE_DIR": str(folder() / "inductor"),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(
                [str(pathlib.Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
            ),
        }
        with self.said.open("wb") as errors:
            # It hears orders, a line each. Its input is closed when this process ends, however that ends (`_hear`).
            self.process = subprocess.Popen(
                [sys.executable, "-m", "specviz.passes.compiler", str(scratch)],
                env=environment,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def make(self, job: ProgramJob, halt: threading.Event) -> None:
        """Returns when the program is made, or once `halt` is set, which ends the process.

        Raises SpecvizError (field ``passes``) with the compiler's last word.
        """
        order = next(self.orders)
        torch.save((job.static, job.kind, job.threads, job.path), order)
        # One that has ended cannot be told: that is seen below.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{order}\n".encode())
        failed = _failure(order)
        while not job.path.is_file():
            status = self.process.poll()
            if failed.is_file() or status is not None:
                said = failed if failed.is_file() else self.said
                raise _refusal(job, said.read_text(encoding="utf-8", errors="replace"), f"exit status {status}")
            if halt.wait(_LOOK_SECONDS):
                self.end()
                return

    def end(self) -> None:
        """Ends the process, whatever it does, and the processes it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            _kill([*_descendants(self.process.pid), psutil.Process(self.process.pid)])
        self.process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self.process.stdin.close()
        self._scratch.cleanup()


def _refusal(job: ProgramJob, said: str, otherwise: str) -> SpecvizError:
    """What is told of a program that was not made. said: by the compiler; otherwise: what is told if that is empty."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return SpecvizError(
        "Compiling a pass of {name} failed: {reason}",
        "passes",
        name=job.static.name,
        reason=(lines[-1] if lines else otherwise)[:300],
    )


def _failure(order: pathlib.Path) -> pathlib.Path:
    """The file that says why an order could not be carried out."""
    return order.with_suffix(".txt")


def _descendants(pid: int) -> list[psutil.Process]:
    """The processes that a process started, the C++ compiler among them."""
    return psutil.Process(pid).children(recursive=True)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def forget_old(keep_bytes: int = KEPT_BYTES) -> None:
    """Removes the programs that were used longest ago, until the rest is no larger than `keep_bytes`."""
    known = sorted(folder().glob("*.pt2"), key=lambda path: path.stat().st_mtime, reverse=True)
    total = 0
    for path in known:
        total += path.stat().st_size
        if total > keep_bytes:
            path.unlink()


def main(arguments: Sequence[str]) -> None:
    """The process that makes programs: FOLDER, which it may write to, and orders on its standard input."""
    orders: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()
    threading.Thread(target=_hear, args=[pathlib.Path(arguments[0]), orders], daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    # Not with the other imports: it takes two seconds, and only this process needs it.
    from torch._inductor.codegen.common import KernelTemplate

    # Inductor parses the same few templates anew for every product, which takes it a quarter of its time.
    KernelTemplate._template_from_string = staticmethod(functools.cache(KernelTemplate._template_from_string))
    while True:
        _carry_out(orders.get())


def _hear(scratch: pathlib.Path, orders: queue.SimpleQueue[pathlib.Path]) -> None:
    """Passes orders on until whoever gives them is gone, even killed; then ends this process and leaves nothing."""
    for line in sys.stdin:
        orders.put(pathlib.Path(line.rstrip("\n")))
    _kill(_descendants(os.getpid()))
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def _carry_out(order: pathlib.Path) -> None:
    # Written by this user's own process, a moment ago, in a folder of its own.
    static, kind, threads, path = torch.load(order, weights_only=False)
    torch.set_num_threads(threads)
    made, failed = order.with_suffix(".pt2"), _failure(order)
    try:
        build(static, kind, made)
        os.replace(made, path)
    except Exception as error:
        # Said by `Worker.make`; whole from the moment on that it is there.
        unfinished = failed.with_suffix(".part")
        unfinished.write_text("".join(traceback.format_exception_only(error)), encoding="utf-8")
        os.replace(unfinished, failed)


if __name__ == "__main__":
    main(sys.argv[1:])
