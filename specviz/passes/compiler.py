"""Has programs made once per machine, by processes of low priority.

They stand still while something is measured (`compilers_paused`), and while later ones work for a model that came
meanwhile. They also make programs of single layers, for GPUs (`compiled_layers`).
`python -m specviz.passes.compiler FOLDER` is such a process.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pathlib
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import psutil
from torch import Tensor

from specviz.passes.kernels.kernel_library import cache_folder, writable_folder
from specviz.passes.programs import build
from specviz.passes.roles import Role
from specviz.records.errors import SpecvizError

_NICENESS = 10

#: True where processes have groups, which can be stopped.
_GROUPS = hasattr(os, "killpg")

#: Seconds for which these processes stand still at most, all times together: on a page that is always in use they would
#: never come to an end.
MOST_REST = 120.0

#: Seconds between checks whether programs are no longer wanted.
_LOOK_SECONDS = 0.1


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


class _Pickler(pickle.Pickler):
    """Pickles of a tensor only its own numbers: packed weights of other layers may lie beside them in memory."""

    def reducer_override(self, item: Any) -> Any:
        if type(item) is Tensor and not item.is_meta and item.untyped_storage().nbytes() > item.nbytes:
            return item.clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def order_of(job: ProgramJob) -> bytes:
    """The job, as it is sent to the process that carries it out."""
    order = io.BytesIO()
    _Pickler(order).dump((job.build, job.static, job.path))
    return order.getvalue()


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
            pickle.dump(order_of(job), self._orders)
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
