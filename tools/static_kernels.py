"""Compiles the kernels of the page without a server to WebAssembly: ``python -m tools.static_kernels``.

It takes clang with its WebAssembly linker (Debian's packages clang and lld). What it writes is committed, so that
nobody else needs them.
"""

import pathlib
import subprocess

from specviz.records.assets import ASSETS

SOURCE = ASSETS / "web" / "static" / "kernels.c"
COMPILED = SOURCE.with_suffix(".wasm")

FLAGS = ["--target=wasm32", "-O3", "-msimd128", "-ffreestanding", "-nostdlib", "-Wall", "-Wextra", "-Werror"]
FLAGS += ["-Wl,--no-entry", "-Wl,--strip-all", "-Wl,--export=__heap_base"]


def compile_kernels(to: pathlib.Path = COMPILED) -> None:
    subprocess.run(["clang", *FLAGS, "-o", to, SOURCE], check=True)


if __name__ == "__main__":
    compile_kernels()
