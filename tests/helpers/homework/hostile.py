"""Students' files that mean harm, or have bad luck."""

#: By name, a file and what must be said of it. HERE stands for a folder that is watched.
HOSTILE: dict[str, tuple[str, str]] = {
    "exits": ("import sys\ndef accept(p, q, token, u):\n    sys.exit(0)", "SystemExit"),
    "exits at once": ("import os\nos._exit(0)", "ended the process, with exit status 0"),
    "loops": ("def accept(p, q, token, u):\n    while True: pass", "did not end within"),
    "takes memory": ("def accept(p, q, token, u):\n    return bytes(1 << 40)", "MemoryError"),
    "recurses": ("def accept(p, q, token, u):\n    return accept(p, q, token, u)", "RecursionError"),
    "writes": ('def accept(p, q, token, u):\n    open("HERE/evil", "w")', "homework may not change files"),
    "removes": ('import os\ndef accept(p, q, token, u):\n    os.remove("HERE/kept")', "homework may not change files"),
    "forks": ("import os\ndef accept(p, q, token, u):\n    os.fork()", "homework may not start a process"),
    "starts a program": (
        'import subprocess\ndef accept(p, q, token, u):\n    subprocess.run(["touch", "HERE/evil"])',
        "homework may not start a program",
    ),
    "goes out": (
        'import socket\ndef accept(p, q, token, u):\n    socket.create_connection(("127.0.0.1", 9))',
        "homework may not use the network",
    ),
    "raises a signal": (
        "import signal\ndef accept(p, q, token, u):\n    signal.raise_signal(40)",
        "accept crashed (signal 40)",
    ),
    "kills": ("import os\ndef accept(p, q, token, u):\n    os.kill(os.getppid(), 9)", "homework may not end a process"),
    "leaves Python": (
        "import ctypes, os\ndef accept(p, q, token, u):\n    ctypes.CDLL(None).kill(os.getppid(), 9)",
        "homework may not leave Python",
    ),
    "copies the solution": (
        "def accept(p, q, token, u):\n    import specviz.grading.solutions as ours\n"
        "    return ours.passes(p, q, token, u)",
        "homework may not import specviz",
    ),
    "answers for Python": (
        "import os\ndef accept(p, q, token, u):\n"
        '    for file in range(3, 20):\n        try: os.write(file, b"[" * 200)\n'
        "        except OSError: pass",
        "accept gave back more than",
    ),
    "equals everything": (
        "class Yes(float):\n    def __eq__(self, other): return True\n    __lt__ = __gt__ = __eq__\n"
        "def accept(p, q, token, u):\n    return Yes()",
        "accept gave back a value of type Yes: it must be a bool",
    ),
    "breaks numpy": (
        "import numpy, json\nnumpy.array = numpy.asarray = json.dumps = json.loads = lambda *given, **named: None\n"
        "def accept(p, q, token, u):\n    return False",
        "No token passes",
    ),
    "is no Python": ("def accept(p, q", "Loading the file raised SyntaxError in line 1"),
    "is empty": ("", "It defines none of"),
}
