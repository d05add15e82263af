"""The process in which one student's file runs: a script of its own, which imports nothing of the program.

It knows no expected value: it reads a call from its input, makes it, and writes what came back. The models and the
verdicts live in the grader's process. Before the file is loaded, the process shuts itself in.
"""

from __future__ import annotations

import ctypes
import os
import sys
import types
from collections.abc import Sequence
from json import dumps, loads
from struct import pack, unpack
from typing import Any

import numpy

#: What a file may define.
FUNCTIONS = ("accept", "residual", "verify", "speculate")

#: Seconds of processor time, bytes of memory, open files, and numbers in an answer.
MOST_SECONDS, MOST_BYTES, MOST_FILES, MOST_NUMBERS = 90, 1 << 30, 64, 1000

#: By what a refusal calls it, what Python says of itself beforehand: the beginnings of its audit events.
REFUSED = {
    "use the network": ("socket.", "urllib.", "http.", "ftplib.", "smtplib."),
    "start a program": (
        "subprocess.",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "_winapi.",
    ),
    "start a process": ("os.fork", "pty.", "_thread.start_new_thread"),
    "end a process": ("os.kill", "signal.pthread_kill"),
    "change files": ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.ch"),
    "leave Python": ("ctypes.", "mmap.", "sys.addaudithook"),
}

#: Rights to files that Landlock knows, by its version; to read files and folders.
FILE_RIGHTS, READING = {1: 13, 2: 14, 3: 15, 4: 15}, 0b1100

tried: list[str] = []


def limit() -> bool:
    """Limits what the system counts; True if it does. No byte can be written to a file, no process started."""
    if sys.platform == "win32":
        return False
    import resource

    most = {"CPU": MOST_SECONDS, "FSIZE": 0, "NPROC": 0, "NOFILE": MOST_FILES, "CORE": 0}
    if sys.platform == "linux":  # macOS reserves more address space than any limit allows
        most["AS"] = MOST_BYTES
    for name, value in most.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        already = resource.getrlimit(kind)[1]  # nobody may raise it
        value = value if already == resource.RLIM_INFINITY else min(value, already)
        resource.setrlimit(kind, (value, value))
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
    handled = pack("QQQ", (1 << FILE_RIGHTS.get(version, 16)) - 1, 3, 3)
    handled = handled[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = system.syscall(444, handled, ctypes.c_size_t(len(handled)), 0)
    for folder in filter(os.path.isdir, {*sys.path, sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64"}):
        opened = os.open(folder, os.O_PATH)
        system.syscall(445, rules, 1, pack("=Qi", READING, opened), 0)
        os.close(opened)
    system.prctl(38, 1, 0, 0, 0)
    return bool(system.syscall(446, rules, 0) == 0)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: raises PermissionError for what homework has no use for, and remembers that it was tried."""
    what = next((what for what, beginnings in REFUSED.items() if event.startswith(beginnings)), None)
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        what = "change files"
    if event == "import" and arguments[0] == "specviz":
        what = "import specviz"
    if what:
        if what not in tried:
            tried.append(what)
        raise PermissionError(f"homework may not {what}")


class Channel:
    """Messages to and from the grader: JSON, behind its length in four bytes. What the file prints goes nowhere."""

    def __init__(self) -> None:
        self.requests, self.answers = (os.fdopen(os.dup(number), mode) for number, mode in ((0, "rb"), (1, "wb")))
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)

    def receive(self) -> Any:
        return loads(self.requests.read(unpack("<I", self.requests.read(4))[0]))

    def send(self, **message: Any) -> None:
        data = dumps(message | {"tried": tried}).encode()
        self.answers.write(pack("<I", len(data)) + data)
        self.answers.flush()

    def model(self, name: str, ids: Sequence[int]) -> Any:
        """What `target` or `draft` gives: the grader is asked, and counts."""
        self.send(model=name, ids=[int(id) for id in ids])
        answer = self.receive()
        if "rows" in answer:
            return numpy.array(answer["rows"], numpy.float64)
        raise ValueError(answer["refused"])


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


def called(function: Any, name: str, given: list[Any], channel: Channel) -> dict[str, Any]:
    """What a function gives back: as JSON has it, and in a few words."""
    coins = Coins([])
    if name == "speculate":
        coins = Coins(given.pop())
        models = [lambda ids, name=name: channel.model(name, ids) for name in ("target", "draft")]
        given = [*models, *given, coins]
    else:
        # Lists of floats are arrays; the tokens of `verify` are a list of ids.
        lists = [isinstance(value, list) and (name, place) != ("verify", 2) for place, value in enumerate(given)]
        given = [numpy.array(value, numpy.float64) if is_list else value for value, is_list in zip(given, lists)]
    value = function(*given)
    try:
        return {"value": plain(value), "kind": kind(value), "used": coins.used}
    except TypeError:
        return {"kind": kind(value)}


def plain(value: Any) -> Any:
    """Truth, whole numbers, arrays of float64, None, and lists and tuples of these; TypeError for all else."""
    if value is None or isinstance(value, (bool, numpy.bool_)):
        return value if value is None else bool(value)
    if isinstance(value, (int, numpy.integer)):
        return int(value)
    if isinstance(value, numpy.ndarray) and value.dtype == numpy.float64 and value.size <= MOST_NUMBERS:
        return value.tolist()
    if isinstance(value, (list, tuple)) and len(value) <= MOST_NUMBERS:
        return [plain(part) for part in value]
    raise TypeError


def kind(value: Any) -> str:
    if isinstance(value, numpy.ndarray):
        return f"an array of {value.dtype} with the shape {value.shape}"
    if isinstance(value, (tuple, list)):
        kinds = sorted({type(part).__name__ for part in value})
        return f"a {type(value).__name__} of {len(value)} ({', '.join(kinds)})"
    return f"a value of type {type(value).__name__}"


def described(error: BaseException, file: str) -> str:
    """An exception in one line, with the file's line that raised it."""
    place, line = error.__traceback__, getattr(error, "lineno", None)
    while place:
        line = place.tb_lineno if place.tb_frame.f_code.co_filename == file else line
        place = place.tb_next
    try:
        message = "" if isinstance(error, SystemExit) else f": {str(error)[:200]}"
    except BaseException:
        message = ", whose message cannot be read"
    return f"{type(error).__name__}{f' in line {line}' if line else ''}{message.rstrip('.: ')}"


def main() -> None:
    channel = Channel()
    source, file = channel.receive()
    walls = {"limits": limit(), "network": leave_the_network(), "files": shut_in()}
    sys.addaudithook(refuse)
    homework = sys.modules["homework"] = types.ModuleType("homework")
    try:
        exec(compile(source, file, "exec"), vars(homework))
    except BaseException as error:
        channel.send(fault=described(error, file))
        return
    defined = {name: vars(homework)[name] for name in FUNCTIONS if callable(vars(homework).get(name))}
    channel.send(defined=list(defined), walls=walls)
    while True:
        name, given = channel.receive()
        try:
            answer = called(defined[name], name, given, channel)
        except BaseException as error:
            answer = {"fault": described(error, file)}
        channel.send(**answer)


if __name__ == "__main__":
    main()
