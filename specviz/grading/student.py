"""A student's file in a process of its own: calls of its functions, and a sentence for each way in which one can fail."""

from __future__ import annotations

import io
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
from collections.abc import Mapping
from typing import Any

from specviz.grading.child import MOST_SECONDS
from specviz.grading.solutions import Model

CHILD = pathlib.Path(__file__).with_name("child.py")

#: Seconds for one call, for loading a file, and for all calls of one process.
CALL_SECONDS, LOAD_SECONDS, ALL_SECONDS = 5.0, 20.0, 80.0

#: The most bytes that an answer may have.
MOST_ANSWERED = 100_000

#: What a function must give back.
WANTED = {
    "accept": "a bool",
    "residual": "an array of float64, as long as p",
    "verify": "a tuple of two whole numbers",
    "speculate": "a list of whole numbers",
}

#: Variables without which Python does not start.
_KEPT = ("SYSTEMROOT", "LD_LIBRARY_PATH")
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Fault(Exception):
    """What a student's file did instead of answering, in a sentence. over: its process is gone."""

    def __init__(self, sentence: str, over: bool = False) -> None:
        super().__init__(sentence)
        self.sentence, self.over = sentence, over


class Student:
    """A process that has loaded the file; as a context manager it ends the process.

    Raises Fault if the file cannot be loaded. defined: which of the functions it has. walls: what the system holds the
    process to (`child.py`). refused: what it tried to do and may not.
    """

    def __init__(self, file: pathlib.Path) -> None:
        self.refused: list[str] = []
        self._until = self._all_until = time.monotonic() + LOAD_SECONDS
        self._overdue, self._done = False, threading.Event()
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(CHILD)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.name,
            env=_ONE_THREAD | {name: os.environ[name] for name in _KEPT if name in os.environ},
            start_new_session=True,
        )
        assert isinstance(self._process.stdin, io.RawIOBase) and isinstance(self._process.stdout, io.RawIOBase)
        self._requests, self._answers = self._process.stdin, io.BufferedReader(self._process.stdout)
        self._watch = threading.Thread(target=self._end_in_time, daemon=True)
        self._watch.start()
        try:
            self._send([file.read_bytes().decode("utf-8-sig", "replace"), file.name])
            loaded = self._receive("Loading the file")
            if "fault" in loaded:
                raise Fault(f"Loading the file raised {loaded['fault']}.", over=True)
        except BaseException:
            self.__exit__()
            raise
        self.defined, self.walls = list(loaded["defined"]), dict(loaded["walls"])
        self._all_until = time.monotonic() + ALL_SECONDS

    def __enter__(self) -> Student:
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._kill()
        self._process.wait()
        self._watch.join()
        self._requests.close()
        self._answers.close()
        self._folder.cleanup()

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

    def call(self, name: str, *given: Any) -> Any:
        """What a function gives back; the models and coins of `speculate` stay here. Raises Fault."""
        self._until = time.monotonic() + CALL_SECONDS
        models: dict[str, Model] = {}
        coins = None
        if name == "speculate":
            target, draft, *others, coins = given
            models, given = {"target": target, "draft": draft}, (*others, coins.values)
        self._send([name, given])
        while "model" in (answer := self._receive(name)):
            self._send(_rows(models, answer))
        if "fault" in answer:
            raise Fault(f"{name} raised {answer['fault']}.")
        if "odd" in answer:
            raise Fault(f"{name} gave back {answer['odd']}: it must be {WANTED[name]}.")
        if coins is not None:
            coins.used = min(int(answer["used"]), len(coins.values))
        return answer["value"]

    def _send(self, message: object) -> None:
        data = json.dumps(message).encode()
        try:
            self._requests.write(struct.pack("<I", len(data)) + data)
        except BrokenPipeError:
            # The next read says what became of the process.
            return

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
            self.refused = [str(what)[:80] for what in message.get("refused", self.refused)]
        except (ValueError, AttributeError, RecursionError) as error:
            raise Fault(f"{doing} wrote to the grader instead of answering.", over=True) from error
        return message

    def _ending(self) -> str:
        """How the process ended."""
        if not self._overdue and time.monotonic() < self._until:
            self._until = min(self._until, time.monotonic() + 1)  # its pipe is closed: the rest may hang
        status = self._process.wait()
        if self._overdue:
            seconds = CALL_SECONDS if self._until < self._all_until else ALL_SECONDS
            return f"did not end within {seconds:.0f} seconds"
        if status >= 0:
            return f"ended the process, with exit status {status}"
        if -status == getattr(signal, "SIGXCPU", None):
            return f"took more than {MOST_SECONDS} seconds of processor time"
        return f"crashed ({signal.Signals(-status).name}), as endless recursion or too much memory can make it"


def _rows(models: Mapping[str, Model], asked: Mapping[str, Any]) -> dict[str, Any]:
    """A model's answer to a call from within `speculate`."""
    try:
        return {"rows": models[asked["model"]](asked["ids"])}
    except (LookupError, TypeError, ValueError):
        return {"refused": f"the model was asked for {str(asked['ids'])[:80]}, which are not all ids of its vocabulary"}
