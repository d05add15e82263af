"""A student's file in a process of its own: calls of its functions, and a sentence for each way in which one fails."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from specviz.grading.child import MOST_SECONDS
from specviz.grading.solutions import Coins, Model

#: Seconds for one call, for loading a file, and for all calls of one process.
CALL_SECONDS, LOAD_SECONDS, ALL_SECONDS = 5, 20, 80

#: What the process runs.
CHILD = pathlib.Path(__file__).with_name("child.py")

#: The most bytes of an answer and of a file.
MOST_ANSWERED, MOST_SOURCE = 100_000, 1_000_000

#: What a function must give back.
WANTED = {
    "accept": "a bool",
    "residual": "an array of float64, as long as p",
    "verify": "two whole numbers",
    "speculate": "a list of ids",
}

#: The variables of the process: those without which Python does not start, and one thread.
_KEPT = ("SYSTEMROOT", "LD_LIBRARY_PATH")
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Fault(Exception):
    """What a student's file did instead of answering, in a sentence. over: its process is gone."""

    def __init__(self, sentence: str, over: bool = False) -> None:
        super().__init__(sentence)
        self.sentence, self.over = sentence, over


class Student:
    """A process with a file's functions. defined: which of them it has. walls: what the system holds the process to
    (`child.py`). tried: what it tried to do and may not."""

    def __init__(self, folder: str) -> None:
        self.defined: list[str] = []
        self.walls: dict[str, bool] = {}
        self.tried: list[str] = []
        self._seconds, self._until, self._all_until = 0, float("inf"), float("inf")
        self._overdue, self._done = False, threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=_ONE_THREAD | {name: os.environ[name] for name in _KEPT if name in os.environ},
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._watch = threading.Thread(target=self._end_in_time, daemon=True)
        self._watch.start()

    def load(self, source: str, name: str) -> None:
        """Raises Fault if the file cannot be loaded."""
        self._allow(LOAD_SECONDS)
        self._send([source, name])
        loaded = self._receive("Loading the file")
        if "fault" in loaded:
            raise Fault(f"Loading the file raised {loaded['fault']}.")
        self.defined = [name for name in WANTED if name in loaded.get("defined", ())]
        self.walls = {str(name): bool(held) for name, held in dict(loaded.get("walls", {})).items()}
        self._all_until = time.monotonic() + ALL_SECONDS

    def call(self, name: str, *given: Any) -> Any:
        """What a function gives back; the models and coins of `speculate` stay here. Raises Fault."""
        self._allow(CALL_SECONDS)
        models: dict[str, Model] = {}
        coins = Coins([])
        if name == "speculate":
            target, draft, *others, coins = given
            models, given = {"target": target, "draft": draft}, (*others, coins.values)
        self._send([name, given])
        while "model" in (answer := self._receive(name)):
            self._send(_rows(models, answer))
        if "fault" in answer:
            raise Fault(f"{name} raised {answer['fault']}.")
        value, coins.used = answer.get("value"), answer.get("used", 0)
        if not _fits(name, value, len(given[0])) or coins.used not in range(len(coins.values) + 1):
            raise Fault(f"{name} gave back {answer.get('kind')}: it must be {WANTED[name]}.")
        return value

    def end(self) -> None:
        self._done.set()
        self._kill()
        self._process.wait()
        self._watch.join()
        self._answers.close()
        with contextlib.suppress(BrokenPipeError):  # what was still to be sent is not wanted any more
            self._requests.close()

    def _allow(self, seconds: int) -> None:
        self._seconds, self._until = seconds, time.monotonic() + seconds

    def _end_in_time(self) -> None:
        while not self._done.wait(0.1):
            if time.monotonic() > min(self._until, self._all_until):
                self._overdue = True
                self._kill()
                return

    def _kill(self) -> None:
        """Ends the process, and whatever it may have started."""
        if self._process.poll() is None:
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, message: object) -> None:
        data = json.dumps(message).encode()
        # Of a process that is gone, the next read says what became of it.
        with contextlib.suppress(BrokenPipeError):
            self._requests.write(struct.pack("<I", len(data)) + data)
            self._requests.flush()

    def _receive(self, doing: str) -> dict[str, Any]:
        """The next message. Raises Fault where there is none, or one that no honest process sends."""
        head = self._answers.read(4)
        size = struct.unpack("<I", head)[0] if len(head) == 4 else 0
        if size > MOST_ANSWERED:
            raise Fault(f"{doing} gave back more than {MOST_ANSWERED} bytes.", over=True)
        data = self._answers.read(size)
        if not data or len(data) < size:
            raise Fault(f"{doing} {self._ending()}.", over=True)
        try:
            message: dict[str, Any] = json.loads(data)
            self.tried = [str(what)[:80] for what in message["tried"]]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Fault(f"{doing} wrote to the grader instead of answering.", over=True) from error
        return message

    def _ending(self) -> str:
        """How the process ended, which has closed its pipe."""
        self._until = min(self._until, time.monotonic() + 1)
        status = self._process.wait()
        if self._overdue:
            return f"did not end within {self._seconds if self._until <= self._all_until else ALL_SECONDS} seconds"
        if status >= 0:
            return f"ended the process, with exit status {status}"
        if -status == getattr(signal, "SIGXCPU", None):
            return f"took more than {MOST_SECONDS} seconds of processor time"
        names = {int(one): one.name for one in signal.Signals}
        name = names.get(-status, f"signal {-status}")
        return f"crashed ({name}), as endless recursion or too much memory can make it"


@contextlib.contextmanager
def loaded(file: pathlib.Path) -> Iterator[Student]:
    """A process that has loaded the file, until the context ends. Raises Fault if it cannot be loaded."""
    try:
        source = file.read_bytes()
    except OSError as error:
        raise Fault(f"The file cannot be read: {error.strerror}.") from error
    if len(source) > MOST_SOURCE:
        raise Fault(f"The file has more than {MOST_SOURCE} bytes.")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        student = Student(folder)
        ending.callback(student.end)
        student.load(source.decode("utf-8-sig", "replace"), file.name)
        yield student


def _rows(models: Mapping[str, Model], asked: Mapping[str, Any]) -> dict[str, Any]:
    """A model's answer to a call from within `speculate`."""
    try:
        return {"rows": models[asked["model"]](asked["ids"])}
    except (LookupError, TypeError):
        return {"refused": f"the model was asked about {str(asked.get('ids'))[:80]}, but knows fewer ids"}


def _fits(name: str, value: object, size: int) -> bool:
    """Whether a value is what the function should give back, whatever its process says."""
    if not isinstance(value, list):
        return name == "accept" and isinstance(value, bool)
    if name == "verify":
        return len(value) == 2 and type(value[0]) is int and (value[1] is None or type(value[1]) is int)
    kind = {"residual": float, "speculate": int}.get(name)
    return all(type(part) is kind for part in value) and (name == "speculate" or len(value) == size)
