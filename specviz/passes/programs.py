"""Passes over static buffers as machine code: made by torch.export, then AOTInductor; kept in a folder, and loaded.

A program reads any number of tokens and holds no weights: it is given those of the model, which are in memory once.
It loads in a fraction of a second. `compiler` has processes of low priority make programs.
"""

import contextlib
import hashlib
import inspect
import itertools
import os
import pathlib
import platform
import sys
import tempfile
import zipfile
from collections.abc import Sequence

import torch
import transformers
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from specviz.passes import model_twins, static_passes
from specviz.passes.kernels import few_rows, joining, kernel_library, operations, packed_linear
from specviz.passes.kernels.joining import join_operations
from specviz.passes.kernels.kernel_library import cache_folder, processor
from specviz.passes.kernels.operations import C_SHIMS
from specviz.passes.static_passes import FEW_NUMBERS, WIDEST, StaticPass
from specviz.records.errors import SpecvizError, first_line
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

#: Whose code is part of a program, or says which weights it is given.
_MODULES = (static_passes, model_twins, few_rows, packed_linear, kernel_library, operations, joining)


class Program:
    """`StaticPass.forward` as the program in the file `path`, on the weights of `static`.

    Raises SpecvizError (field ``passes``) if it cannot be loaded, or asks for weights that `static` does not have.
    """

    def __init__(self, static: StaticPass, path: pathlib.Path):
        self.path = path
        # The bare loader: torch's wrapper around it inspects the shapes of all arguments on every call.
        try:
            self.loader = torch._inductor.aoti_load_package(str(path)).loader
        except Exception as error:
            # Half a file, or no room to unpack it: torch's readers raise anything.
            raise SpecvizError(
                "The compiled pass of {name} cannot be loaded: {reason}. Delete {file} to have the pass compiled "
                "again.",
                "passes",
                name=static.name,
                reason=first_line(error),
                file=path,
            ) from error
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
    join_operations(program.graph)
    program.graph_module.recompile()
    return program


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
        *map(inspect.getsource, (sys.modules[kind.__module__], *_MODULES)),
        *[inspect.getsource(step) for step in (exported, build)],
    ]
    return cache_folder() / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}.pt2"


def refuse_crowded(models: Sequence[nn.Module], free: int) -> None:
    """Raises SpecvizError (field ``passes``) if there is no memory for weights in the kernels' own layout, beside the
    models' own where something else reads those too. free: bytes; half of them are left to texts."""
    weights = itertools.chain.from_iterable(model.parameters() for model in models)
    # What is not exactly bfloat16 is kept in float32.
    needed = sum(weight.numel() * (2 if weight.dtype == torch.bfloat16 else 4) for weight in weights)
    if needed > free // 2:
        raise SpecvizError(
            "Compiled passes would need up to {needed} more for weights, more than half of the {free} of free memory.",
            "passes",
            needed=Bytes(needed),
            free=Bytes(free),
        )


def forget_old(keep_bytes: int = KEPT_BYTES) -> None:
    """Removes the oldest programs until the rest is no larger than `keep_bytes`."""
    programs = itertools.chain.from_iterable(map(cache_folder().glob, ("*.pt2", "*.layer")))
    total = 0
    with contextlib.suppress(OSError):  # another process removes them too, or nobody may: the next one tries again
        for path in sorted(programs, key=lambda path: path.stat().st_mtime, reverse=True):
            unpacked = path.with_suffix(".so")
            total += path.stat().st_size + (unpacked.stat().st_size if unpacked.is_file() else 0)
            if total > keep_bytes:
                path.unlink()
                unpacked.unlink(missing_ok=True)
