"""The process in which one student's file runs: a script of its own, which imports nothing of the program.

It knows no expected value: it reads a call from its input, makes it, and writes what came back. The target, the draft
model and the verdicts live in the grader's process. Before the file is loaded, the process shuts itself in.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy

#: What a file may define.
FUNCTIONS = ("accept", "residual", "verify", "speculate")

#: Seconds of processor time, bytes of memory, and open files.
MOST_SECONDS, MOST_BYTES, MOST_FILES = 90, 2 << 30, 64

#: What Python reports of itself (its audit events, by their beginnings), and what a refusal calls it.
REFUSED = {
    **dict.fromkeys(("socket.", "urllib.", "http.", "ftplib.", "smtplib."), "use the network"),
    **dict.fromkeys(("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn"), "start a program"),
    **dict.fromkeys(("os.fork", "pty.", "os.startfile", "_winapi."), "start a process"),
    **dict.fromkeys(("os.kill", "signal.pthread_kill"), "end a process"),
    **dict.fromkeys(("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink"), "change files"),
    **dict.fromkeys(("os.truncate", "os.ch", "os.utime", "os.setxattr", "shutil.", "tempfile."), "change files"),
    **dict.fromkeys(("ctypes.", "mmap.", "_thread.start_new_thread", "sys.addaudithook"), "leave Python"),
}

#: Rights to files that Landlock knows, by its version; to read files and folders.
FILE_RIGHTS, READING = {1: 13, 2: 14, 3: 15, 4: 15}, 0b1100

refused: list[str] = []


def limit() -> bool:
    """Limits what the system counts; True if it does. No byte can be written to a file, no process started."""
    if sys.platform == "win32":
        return False
    import resource

    most = {"CPU": MOST_SECONDS, "FSIZE": 0, "NPROC": 0, "NOFILE": MOST_FILES, "CORE": 0}
    if sys.platform == "linux":  # macOS reserves more address space than any limit allows
        most["AS"] = MOST_BYTES
    for name, value in most.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    return True


def leave_the_network() -> bool:
    """Goes to a network without any device (`unshare(2)`, with a user namespace); True where the system allows it."""
    return sys.platform == "linux" and ctypes.CDLL(None).unshare(0x10000000 | 0x40000000) == 0


def shut_in() -> bool:
    """From here on only Python's own files can be read, none changed, nobody signalled: Landlock, on Linux from 5.13.

    True if the system does it. The numbers are landlock(7)'s: create a set of rules, add one for each folder, obey.
    """
    if sys.platform != "linux":
        return False
    system = ctypes.CDLL(None)
    version = system.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    handled = struct.pack("QQQ", (1 << FILE_RIGHTS.get(version, 16)) - 1, 3, 3)
    handled = handled[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = system.syscall(444, handled, ctypes.c_size_t(len(handled)), 0)
    for folder in {*sys.path, sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64"}:
        if os.path.isdir(folder):
            opened = os.open(folder, os.O_PATH)
            system.syscall(445, rules, 1, struct.pack("=Qi", READING, opened), 0)
            os.close(opened)
    system.prctl(38, 1, 0, 0, 0)
    return bool(system.syscall(446, rules, 0) == 0)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: raises PermissionError for what homework has no use for, and remembers that it was tried."""
    what = next((what for beginning, what in REFUSED.items() if event.startswith(beginning)), None)
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        what = "change files"
    if event == "import" and arguments[0] in ("specviz", "_posixsubprocess"):
        what = f"import {arguments[0]}"
    if what:
        if what not in refused:
            refused.append(what)
        raise PermissionError(f"homework may not {what}")


class Channel:
    """Messages to and from the grader: JSON, behind its length in four bytes."""

    def __init__(self) -> None:
        self.requests, self.answers = (os.fdopen(os.dup(number), mode) for number, mode in ((0, "rb"), (1, "wb")))
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)

    def receive(self) -> Any:
        head = self.requests.read(4)
        if len(head) < 4:
            raise EOFError
        return json.loads(self.requests.read(struct.unpack("<I", head)[0]))

    def send(self, **message: Any) -> None:
        data = json.dumps(message).encode()
        self.answers.write(struct.pack("<I", len(data)) + data)
        self.answers.flush()


class Coins:
    """The `rng` of `speculate`."""

    def __init__(self, coins: Sequence[float]) -> None:
        self.coins, self.used = coins, 0

    def random(self) -> float:
        """The next coin, in [0, 1)."""
        if self.used == len(self.coins):
            raise RuntimeError(f"rng.random() was called more than {len(self.coins)} times")
        self.used += 1
        return self.coins[self.used - 1]


class Model:
    """`target` or `draft`: the grader is asked, and counts."""

    def __init__(self, name: str, channel: Channel) -> None:
        self.name, self.channel = name, channel

    def __call__(self, ids: Sequence[int]) -> Any:
        self.channel.send(model=self.name, ids=[int(id) for id in ids])
        answer = self.channel.receive()
        if "rows" in answer:
            return numpy.array(answer["rows"], numpy.float64)
        raise ValueError(answer["refused"])


def called(function: Any, name: str, given: list[Any], channel: Channel) -> dict[str, Any]:
    """What a function gives back, for JSON: its value, or what kind of thing it is if that is the wrong kind."""
    coins = Coins([])
    if name == "speculate":
        *given, numbers = given
        coins = Coins(numbers)
        given = [Model("target", channel), Model("draft", channel), *given, coins]
    else:
        # Lists of numbers are arrays, but for the tokens, which are ids.
        given = [
            numpy.array(value, numpy.float64) if isinstance(value, list) and not (name == "verify" and place == 2) else value
            for place, value in enumerate(given)
        ]
    value = function(*given)
    plain = plain_value(name, value)
    return {"odd": kind(value)} if plain is None else {"value": plain, "used": coins.used}


def plain_value(name: str, value: Any) -> Any:
    """A value as JSON has it; None if it is not what the function should give back."""
    if name == "accept":
        return bool(value) if isinstance(value, (bool, numpy.bool_)) else None
    if name == "residual":
        array = isinstance(value, numpy.ndarray) and value.dtype == numpy.float64 and value.ndim == 1
        return value.tolist() if array else None
    if name == "verify":
        return [*map(whole, value)] if isinstance(value, tuple) and len(value) == 2 and whole(value[0]) is not None else None
    ids = [*map(whole, value)] if isinstance(value, list) else [None]
    return None if None in ids else ids


def whole(value: Any) -> int | None:
    """A whole number of Python or numpy; None for all else, such as a missing next token."""
    return int(value) if isinstance(value, (int, numpy.integer)) and not isinstance(value, bool) else None


def kind(value: Any) -> str:
    """What a value is, in a few words."""
    if isinstance(value, numpy.ndarray):
        return f"array of {value.dtype} and shape {value.shape}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {', '.join(sorted({type(part).__name__ for part in value})) or 'nothing'}"
    return type(value).__name__


def described(error: BaseException, file: str) -> str:
    """An exception in one line, with the file's line that raised it."""
    place, line = error.__traceback__, None
    while place:
        if place.tb_frame.f_code.co_filename == file:
            line = place.tb_lineno
        place = place.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno
    try:
        message = str(error)[:200]
    except BaseException:
        message = "its message cannot be read"
    where = f" in line {line}" if line else ""
    return f"{type(error).__name__}{where}" + (f": {message}" if message else "")


def main() -> None:
    channel = Channel()
    source, file = channel.receive()
    walls = {"limits": limit(), "network": leave_the_network(), "files": shut_in()}
    sys.addaudithook(refuse)
    homework = sys.modules["homework"] = types.ModuleType("homework")
    try:
        exec(compile(source, file, "exec"), vars(homework))
    except BaseException as error:
        channel.send(fault=described(error, file), refused=refused)
        return
    defined = {name: vars(homework)[name] for name in FUNCTIONS if callable(vars(homework).get(name))}
    channel.send(defined=list(defined), walls=walls, refused=refused)
    while True:
        name, given = channel.receive()
        try:
            answer = called(defined[name], name, given, channel)
        except BaseException as error:
            answer = {"fault": described(error, file)}
        channel.send(**answer, refused=refused)


if __name__ == "__main__":
    main()
