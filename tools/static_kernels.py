"""Compiles the kernels of the page without a server to WebAssembly: ``python -m tools.static_kernels``.

It takes clang with its WebAssembly linker (Debian's packages clang and lld). What it writes is committed, so that
nobody else needs them, with a fingerprint of what it was made from: a test compares that with the source.
"""

import hashlib
import subprocess

from specviz.records.assets import ASSETS

SOURCE = ASSETS / "web" / "static" / "kernels.c"
COMPILED = SOURCE.with_suffix(".wasm")
FINGERPRINT = SOURCE.with_suffix(".sha256")

FLAGS = ["--target=wasm32", "-O3", "-msimd128", "-ffreestanding", "-nostdlib", "-Wall", "-Wextra", "-Werror"]
FLAGS += ["-Wl,--no-entry", "-Wl,--strip-all", "-Wl,--export=__heap_base"]


def fingerprint() -> str:
    """Of source and flags, and of what was compiled from them."""
    made_from = [SOURCE.read_bytes(), "\n".join(FLAGS).encode(), COMPILED.read_bytes()]
    return hashlib.sha256(b"\0".join(made_from)).hexdigest()


def compile_kernels() -> None:
    subprocess.run(["clang", *FLAGS, "-o", COMPILED, SOURCE], check=True)
    FINGERPRINT.write_text(fingerprint() + "\n", encoding="ascii")


if __name__ == "__main__":
    compile_kernels()
