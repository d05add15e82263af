"""Compiles passes over static buffers to machine code, once per machine: torch.export, then AOTInductor.

A program reads any number of tokens and holds no weights: it is given those of the model, which are in memory once.
Processes of low priority make the programs, which are kept in a folder and load in a fraction of a second. They stand
still while something is measured (`compilers_paused`), and while later ones work for a model that came meanwhile. They
also make programs of single layers, for GPUs (`compiled_layers`).
`python -m specviz.passes.compiler FOLDER` is such a process.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import json
import operator
import os
import pathlib
import pickle
import platform
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import transformers
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, Node

from specviz.passes.kernels.kernel_library import C_SHIMS, LINEAR, cache_folder, processor, writable_folder
from specviz.passes.roles import Role
from specviz.passes.static_passes import FEW_NUMBERS, WIDEST, StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.words import Bytes

#: How Inductor compiles: products and attention by our own kernels, on as many threads as torch has when they are
#: called; the operations in between are too small for more than one. Weights are handed over when a program is loaded.
#: What an operation rounds is rounded: Gemma's embeddings in bfloat16 are, once they are scaled.
#: It does not test whether the C++ compiler knows AVX-512, which saves eight seconds, but still tests anything newer.
#: Headers compiled beforehand would save a few seconds of a hundred, take 283 MB of the temporary folder, and need the
#: program `openssl`.
OPTIONS = {
    "cpp.threads": 1,
    "cpp.vec_isa_ok": True,
    "emulate_precision_casts": True,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.precompile_headers": False,
    "aot_inductor.custom_ops_to_c_shims": C_SHIMS,
}

#: The most bytes of programs that are kept; the oldest go first.
KEPT_BYTES = 1 << 30

#: How many tokens the example inputs have from which programs are traced.
_EXAMPLE_TOKENS = 5

#: What `FewRowsLinear` does to its inputs, which then are rows.
_IN_ROWS = (torch.ops.aten.reshape.default, torch.ops.aten.view.default, torch.ops.aten.contiguous.default)

_NICENESS = 10

#: True where processes have groups, which can be stopped.
_GROUPS = hasattr(os, "killpg")

#: Seconds for which these processes stand still at most, all times together: on a page that is always in use they would
#: never come to an end.
MOST_REST = 120.0

#: Seconds between checks whether programs are no longer wanted.
_LOOK_SECONDS = 0.1


class Program:
    """`StaticPass.forward` as the program in the file `path`, on the weights of `static`.

    Raises SpecvizError (field ``passes``) if the program asks for weights that it does not have.
    """

    def __init__(self, static: StaticPass, path: pathlib.Path):
        self.path = path
        # The bare loader: torch's wrapper around it inspects the shapes of all arguments on every call.
        self.loader = torch._inductor.aoti_load_package(str(path)).loader
        held = (static.named_parameters(remove_duplicate=False), static.named_buffers(remove_duplicate=False))
        by_name, names = dict(itertools.chain(*held)), self.loader.get_constant_fqns()
        if unknown := [name for name in names if name not in by_name]:
            raise SpecvizError(
                "The compiled pass of {name} needs {weights}, which the model does not have.",
                "passes",
                name=static.name,
                weights=", ".join(unknown[:3]),
            )
        self.weights = {name: by_name[name].detach() for name in names}
        # Managed by us: the program reads the very tensors, which stay as long as it does.
        self.loader.load_constants(self.weights, use_inactive=False, check_full_update=True, user_managed=True)

    def __call__(self, *arguments: Tensor) -> list[Tensor]:
        return self.loader.run(arguments)

    def machine_code(self) -> pathlib.Path:
        """The program's shared library, unpacked next to its file."""
        unpacked = self.path.with_suffix(".so")
        if not unpacked.is_file():
            with zipfile.ZipFile(self.path) as package, tempfile.TemporaryDirectory(dir=self.path.parent) as scratch:
                name = next(name for name in package.namelist() if name.endswith(".so"))
                os.replace(package.extract(name, scratch), unpacked)
        return unpacked


def exported(static: StaticPass) -> ExportedProgram:
    """The pass as a graph of operations, for any room and any number of tokens."""
    # No named dimension: for one, torch 2.11 refuses each condition on it that it cannot prove, such as
    # min(12 · room, 24 · room) = 12 · room where heads share keys and values.
    room, count = Dim.DYNAMIC(min=2, max=2**31 - 1), Dim("count", min=static.fewest, max=WIDEST)
    inputs_and_kv = (*({0: count} for _ in static.input_widths), *({2: room} for _ in static.kv_shapes))
    with torch.no_grad():
        program = torch.export.export(
            static,
            static.examples(_EXAMPLE_TOKENS),
            dynamic_shapes={
                "token_ids": {0: count},
                "positions": {0: count},
                "where": {0: count},
                "visible": {0: count, 1: room},
                "inputs_and_kv": inputs_and_kv,
            },
            strict=False,
        )
    join_layers(program.graph)
    program.graph_module.recompile()
    return program


def join_layers(graph: Graph) -> None:
    """Has linear layers that read the same inputs computed together: inputs are made ready, and threads woken, once."""
    readers: dict[tuple[Node, int], list[Node]] = {}
    for node in graph.find_nodes(op="call_function", target=LINEAR[0]):
        readers.setdefault(_read(node), []).append(node)
    for nodes in readers.values():
        for first in range(0, len(nodes), len(LINEAR)):
            together = nodes[first : first + len(LINEAR)]
            if len(together) == 1:
                continue
            with graph.inserting_before(together[0]):
                layers = itertools.chain.from_iterable(node.args[1:] for node in together)
                joined = graph.call_function(LINEAR[len(together) - 1], (together[0].args[0], *layers))
                outputs = [graph.call_function(operator.getitem, (joined, place)) for place in range(len(together))]
            for node, output in zip(together, outputs, strict=True):
                output.meta = dict(node.meta)
                node.replace_all_uses_with(output)
                graph.erase_node(node)
            joined.meta["val"] = tuple(output.meta["val"] for output in outputs)


def _read(node: Node) -> tuple[Node, int]:
    """What a linear layer reads, before it is put in rows, and their length: both say what the rows are."""
    source = node.args[0]
    length = int(source.meta["val"].shape[-1])
    while source.target in _IN_ROWS:
        source = source.args[0]
    return source, length


def build(static: StaticPass, path: pathlib.Path) -> None:
    """Compiles the pass and writes its program to `path`. The weights of `static` are lost."""
    with torch.no_grad():
        # Inductor takes equal tensors for one and the same, which in another model they are not.
        for number, weights in enumerate(itertools.chain(static.parameters(), static.buffers())):
            if weights.numel() > FEW_NUMBERS:
                # Two numbers will do: to fill the whole would take the memory of a whole model.
                first, second = weights.view(-1)[:2]
                first.fill_(number % 128)
                second.fill_(number // 128)
        torch._inductor.aoti_compile_and_package(exported(static), package_path=str(path), inductor_configs=OPTIONS)


def file(kind: type[StaticPass], described: str) -> pathlib.Path:
    """The file of a pass's program, existing or yet to be made, named by all that it depends on; not by its weights.

    described: `StaticPass.described` of the pass, whose class is `kind`.
    """
    facts = [
        torch.__version__,
        transformers.__version__,
        platform.machine(),
        processor(),
        torch.backends.cpu.get_cpu_capability(),
        OPTIONS,
        described,
        inspect.getsource(sys.modules[kind.__module__]),
        *map(inspect.getsource, (exported, join_layers, _read)),
    ]
    return cache_folder() / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.pt2"


def refuse_crowded(model_bytes: int) -> None:
    """Raises SpecvizError (field ``passes``) if there is no memory for weights in the kernels' own layout, beside the
    model's own where something else reads those too."""
    free = psutil.virtual_memory().available
    if model_bytes > free // 2:
        raise SpecvizError(
            "Compiled passes would need another {needed} for weights, but only {free} of memory are free.",
            "passes",
            needed=Bytes(model_bytes),
            free=Bytes(free),
        )


@dataclass(frozen=True, eq=False)
class ProgramJob:
    """A program to be made."""

    role: Role
    static: Any  # what it is a program of, with a name: a `StaticPass`, or what `build` takes in its place
    path: pathlib.Path
    build: Callable[[Any, pathlib.Path], None] = build  # given both, in another process
    on_gpu: bool = False  # whether that is made on a GPU


def compile_all(
    jobs: Sequence[ProgramJob], processes: int, halt: threading.Event
) -> Generator[tuple[ProgramJob, SpecvizError | None], None, None]:
    """Makes programs in this order; yields each job as it ends, with its error if it failed.

    All are for the same device. It ends early, and its processes with it, once `halt` is set or the iterator is closed.
    """
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def make(job: ProgramJob) -> SpecvizError | None:
        worker = idle.get()
        try:
            return worker.make(job)
        finally:
            idle.put(worker)

    count = min(processes, len(jobs))
    call = next(_calls)
    with ThreadPoolExecutor(count) as pool, contextlib.ExitStack() as workers:
        for _ in range(count):
            idle.put(workers.enter_context(Worker(call, jobs[0].on_gpu)))
        running = {pool.submit(make, job): job for job in jobs}
        try:
            while running and not halt.is_set():
                for ended in wait(running, _LOOK_SECONDS, FIRST_COMPLETED).done:
                    if halt.is_set():
                        return
                    yield running.pop(ended), ended.result()
        finally:
            # Leaving the pool waits for its threads, which end with the workers' processes.
            pool.shutdown(wait=False, cancel_futures=True)


class _Rest:
    """Pauses compiler processes: all of them during a measurement; otherwise those of older calls while a newer call is
    compiling."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers: set[Worker] = set()
        self.askers = 0
        self.began, self.left = 0.0, MOST_REST

    def _arrange(self) -> None:
        measured, last = self.askers > 0 and self.left > 0, max((worker.call for worker in self.workers), default=0)
        for worker in self.workers:
            worker.stop(measured or worker.call < last)

    def ask(self, more: int) -> None:
        """One asker more, or less (−1)."""
        with self.lock:
            if self.askers == 0:
                self.began = time.monotonic()
            self.askers += more
            if self.askers == 0 and self.workers:
                self.left -= time.monotonic() - self.began
            self._arrange()

    def add(self, worker: Worker) -> None:
        """A process that has just been started may have to stop at once, or others for it."""
        with self.lock:
            self.workers.add(worker)
            self._arrange()

    def discard(self, worker: Worker) -> None:
        """Others may go on."""
        with self.lock:
            self.workers.discard(worker)
            self._arrange()


_rest, _calls = _Rest(), itertools.count()


@contextlib.contextmanager
def compilers_paused() -> Iterator[None]:
    """No program is being made meanwhile, where the system can stop processes and they did not rest for long enough."""
    _rest.ask(1)
    try:
        yield
    finally:
        _rest.ask(-1)


class Worker:
    """A process of low priority that makes one program after another, until this context ends.

    It is kept between programs, because loading torch and probing the C++ compiler takes as long as a small program.
    Not one of `multiprocessing`, which would run the main module of the program that compiles once more.
    """

    def __init__(self, call: int, on_gpu: bool = False) -> None:
        self.call = call  # the number of the call that it works for (`_Rest`)
        self.on_gpu = on_gpu
        # A compiler being killed may still be writing there.
        self._scratch = tempfile.TemporaryDirectory(dir=writable_folder(), ignore_cleanup_errors=True)
        self._messages = pathlib.Path(self._scratch.name) / "messages.txt"
        self._ended = False
        self._start()

    def _start(self) -> None:
        root = str(pathlib.Path(__file__).resolve().parents[2])
        environment = {
            "SPECVIZ_CACHE": str(cache_folder()),  # a temporary one, too
            # Shared, so that the compiler is probed only once.
            "TORCHINDUCTOR_CACHE_DIR": str(cache_folder() / "inductor"),
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        }
        if not self.on_gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        # However this process ends, that closes the pipe and ends the other one too (`_hear`).
        pipe, command = subprocess.PIPE, [sys.executable, "-m", "specviz.passes.compiler", self._scratch.name]
        with self._messages.open("wb") as messages:
            # In a group of its own, with the compilers that it starts: if this process dies while they stand still, the
            # system wakes a group that is left behind, and they find the pipe closed.
            group = 0 if _GROUPS else None
            self.process = subprocess.Popen(
                command, env=os.environ | environment, stdin=pipe, stdout=pipe, stderr=messages, process_group=group
            )
        assert self.process.stdin and self.process.stdout, "both are pipes"
        self._orders, self._answers = self.process.stdin, self.process.stdout
        _rest.add(self)

    def stop(self, stands_still: bool) -> None:
        """Stops the process and those it started, or has them go on."""
        if _GROUPS and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGSTOP if stands_still else signal.SIGCONT)

    def make(self, job: ProgramJob) -> SpecvizError | None:
        """Returns once the program is made, or why it was not; None also if the context has ended."""
        if self.process.poll() is not None:
            self._start()
        if self._ended:
            self.end()
        # A process that has ended takes no order, and gives no answer.
        with contextlib.suppress(OSError, ValueError):
            pickle.dump(pickle.dumps((job.build, job.static, job.path)), self._orders)
            self._orders.flush()
        answer = self._answers.readline()
        if self._ended:
            return None
        if answer:
            reason = json.loads(answer)
        else:
            status = self.process.wait()
            reason = _last_line(self._messages.read_text("utf-8", errors="replace")) or f"exit status {status}"
        if reason is None:
            return None
        return SpecvizError(
            "Compiling a pass of {name} failed: {reason}", "passes", name=job.static.name, reason=reason
        )

    def end(self) -> None:
        """Kills the process, whatever it is doing, and the processes it started."""
        self._ended = True
        _rest.discard(self)
        with contextlib.suppress(psutil.NoSuchProcess):
            _kill_below(psutil.Process(self.process.pid))
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self._scratch.cleanup()


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()[:300]


def _kill_below(process: psutil.Process) -> None:
    """Kills all processes below this one, the C++ compiler among them."""
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def forget_old(keep_bytes: int = KEPT_BYTES) -> None:
    """Removes the oldest programs until the rest is no larger than `keep_bytes`."""
    programs = itertools.chain.from_iterable(map(cache_folder().glob, ("*.pt2", "*.layer")))
    newest_first = sorted(programs, key=lambda path: path.stat().st_mtime, reverse=True)
    total = 0
    for path in newest_first:
        total += path.stat().st_size
        if total > keep_bytes:
            path.unlink()
            path.with_suffix(".so").unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> None:
    """The process that makes programs. arguments: its scratch folder.

    Orders come on standard input; the answer to each is a line of JSON on standard output, null or why it failed.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the libraries' own output is not an answer
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    scratch = pathlib.Path(arguments[0])
    threading.Thread(target=_hear, args=[scratch, orders], daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    if _GROUPS:
        # The system says so to stopped processes when it wakes them: there is something to clean up.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while True:
        print(json.dumps(_carry_out(orders.get(), scratch)), file=answers, flush=True)


def _hear(scratch: pathlib.Path, orders: queue.SimpleQueue[bytes]) -> None:
    """Passes orders on until their sender is gone, even if killed; then ends this process and cleans up."""
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            # Safe to unpickle: they come from this user's own process.
            orders.put(pickle.load(sys.stdin.buffer))
    _kill_below(psutil.Process())
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def _carry_out(order: bytes, scratch: pathlib.Path) -> str | None:
    """Makes a program; returns why that failed, if it did."""
    try:
        make, static, path = pickle.loads(order)
        make(static, scratch / path.name)
        os.replace(scratch / path.name, path)
    except Exception as error:
        return _last_line("".join(traceback.format_exception_only(error)))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
