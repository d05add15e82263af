"""Makes the fast passes of one model, and refuses those that are wrong, too large, or no faster than its own."""

import contextlib
import functools
import itertools
import pathlib
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch import Tensor

from specviz.models.placement import free_memory
from specviz.parts.gemma_assistant import assistant_reader
from specviz.parts.head_passes import HeadModel, StaticHead
from specviz.passes import programs
from specviz.passes.cached_model import CachedModel
from specviz.passes.cuda_graphs import WIDTHS, GraphedPasses, Recorder, refuse_unrecordable
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import FastPasses, KeyValueBuffers
from specviz.passes.kernels.chains import DraftsInOneCall
from specviz.passes.kernels.few_rows import in_float32
from specviz.passes.kernels.opened import OpenedProgram
from specviz.passes.model_twins import default_exit, layer_count
from specviz.passes.readers import StaticModel
from specviz.passes.reading_checks import (
    ACCEPTED,
    TREE,
    check_exit,
    difference,
    read_draft,
    reads_trees,
    rounding,
    rows_are_alike,
    some_tokens,
)
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError, first_line
from specviz.records.words import Bytes

#: How often passes are compared with the model's own, each time over other tokens: an empty graph, say, would give the
#: last tokens' logits again.
_COMPARISONS = 2

#: They may lie this many times further from the model's own than the model's own rounding moves these.
_MOVED = 4

#: The drafts with which they are compared, and the tokens kept of each: a chain, and for models that read them a tree.
_CHAIN = ((-1, 0, 1, 2), (0, 1))
_TREE = (TREE, ACCEPTED)

#: Tokens of text before these drafts.
_TEXT = 24

#: The widths on which a program is checked and timed.
_TRIED_WIDTHS = (1, 5)

#: How often each pass is timed before the faster one is chosen.
_REPEATS = 9

#: Positions of a long text. Rooms for keys and values double up to it, and all of them are kept.
_POSITIONS = 2048

#: Tensors as large as the widest pass's logits that recordings hold: whole rounds have several.
_LOGITS = 4

#: Workspaces of libraries, and some dozens of graphs of a few hundred kernels each.
_GRAPHS = 2**28


def compiled(
    static: StaticPass, file: pathlib.Path, drafts: bool = False, target: FastPasses | None = None
) -> FastPasses:
    """The passes compiled to `file`, if they are right and faster than operation by operation.

    drafts: True to draft chains in one call, where that is possible. target: see `check`. Raises SpecvizError (field
    ``passes``) if they are not.
    """
    program = programs.Program(static, file)
    passes = FastPasses(static, program, "compiled")
    check(passes, target)
    _refuse_slower(passes, static)
    passes.rows_are_alike = static.fewest == 1 and rows_are_alike(passes)
    passes.opened = OpenedProgram.of(program)
    if drafts and passes.opened is not None:
        fusion = static.fusion if isinstance(static, StaticHead) else None
        passes.draft = DraftsInOneCall(static, passes.opened, fusion).draft
    return passes


def on_kernels(static: StaticPass, target: FastPasses | None) -> FastPasses:
    """The passes operation by operation on our kernels, if they are right and faster than by torch's own operations.

    The first layers are timed for all, where a model has early exits: it has let go of its weights, and so only these
    layers' come back.
    """
    passes, first = FastPasses(static, static, "kernels"), static
    with contextlib.suppress(SpecvizError):
        if not isinstance(static, StaticHead) and not static.shares_kv:
            check_exit(static.original, static.name)
            first = static.first_layers(default_exit(static.original))
    check(passes, target)
    _refuse_slower(FastPasses(first, first, "kernels"), first.plain())
    passes.rows_are_alike = static.fewest == 1 and rows_are_alike(passes)
    return passes


def recorded(
    static: StaticPass, recorder: Recorder, target: GraphedPasses | None, slower: FastPasses | None = None
) -> GraphedPasses:
    """A model's passes as CUDA graphs, checked before and after recording.

    target: see `check`. slower: the same model's graphs so far, if these are of compiled layers, which have to be
    faster. Raises SpecvizError (field ``passes``).
    """
    _refuse_short_memory(static)
    passes = GraphedPasses(static, recorder, target.kept_buffers if static.shares_kv and target is not None else None)
    check(passes, target)
    if slower is None:
        refuse_unrecordable(static)
    passes.between_rounds(meetings=1)
    if passes.refusal is not None:
        raise passes.refusal
    check(passes, target)
    if isinstance(slower, GraphedPasses):
        _refuse_slower_graphs(passes, slower)
    return passes


@torch.inference_mode()
def check(passes: FastPasses, target: FastPasses | None = None) -> None:
    """Raises SpecvizError (field ``passes``) if fast passes differ from the model's own by more than rounding.

    Passes in float32 are compared with the model in float32, on the same weights. Every shape of pass comes several
    times, each time with other tokens and over rows of zeros. target: the target's fast passes, in whose buffers an
    early exit reads on, and an assistant reads.
    """
    static = passes.static
    outputs = _head_outputs if isinstance(static, StaticHead) else _model_outputs
    compared = outputs(passes, target if static.shares_kv else None)
    try:
        for dtype, expected, actual, moved in compared:
            apart = difference(actual, expected)
            if apart > rounding(dtype) and (moved is None or apart > _MOVED * moved()):
                raise SpecvizError(
                    "A fast pass differs from the model's own by {difference}, more than rounding explains: it "
                    "is not used.",
                    "passes",
                    difference=float(f"{apart:.3g}"),
                )
    except (SpecvizError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # An architecture may raise anything over buffers of this form.
        raise SpecvizError(
            "{name} does not run with static buffers: {reason}.",
            "passes",
            name=static.name,
            reason=first_line(error),
        ) from error


#: The dtype of a computation, the expected tensor, the fast passes' one; and how far that dtype's rounding moves the
#: expected one, None where that was not tried.
_Compared = tuple[torch.dtype, Tensor, Tensor, Callable[[], float] | None]


def _model_outputs(passes: FastPasses, target: FastPasses | None) -> Iterator[_Compared]:
    """Logits and features of the model's own passes over a growing cache, and of the fast ones over the same tokens."""
    static, stopwatch = passes.static, Stopwatch(passes.static.device)
    model, layers, reference = static.original, static.feature_layers, static.reference()
    full_model, full_passes = (model, passes) if target is None else (target.static.original, target)
    fast = StaticModel(full_model, stopwatch, full_passes)
    if target is not None:
        fast = fast.sharing_first_layers(model, layer_count(model), passes)
    fast.feature_layers = layers
    # Asked of the full model, which was tried when it was loaded.
    drafts = [_CHAIN, _TREE] if reads_trees(full_model) else [_CHAIN]
    for seed, (parents, path) in itertools.product(range(_COMPARISONS), drafts):
        tokens = some_tokens(model, _TEXT + len(parents) + 1, seed)
        plain = CachedModel(reference, stopwatch, layers)
        fast.rewind(0)
        _clear(fast.buffers)
        both = [read_draft(cached, tokens, parents, path) for cached in (plain, fast)]
        moved = functools.cache(functools.partial(_moved_by_rounding, static, tokens, parents, path))
        for logits in zip(*both, strict=True):
            yield static.product_dtype, *logits, moved
            if layers:
                yield static.dtype, plain.features, fast.features, moved


def _moved_by_rounding(
    static: StaticPass, tokens: Sequence[int], parents: tuple[int, ...], path: Sequence[int]
) -> float:
    """How far apart the logits of these passes lie with the model's rounding and without, at the most.

    Gemma 3 in bfloat16 moves by up to a seventh over arbitrary tokens, and as far if only the order of sums changes.
    """
    if static.product_dtype == torch.float32:
        return 0.0
    wide = in_float32(static.original, None if static.few_rows is None else static.model)
    both = [
        read_draft(CachedModel(model, Stopwatch(static.device)), tokens, parents, path)
        for model in (static.reference(), wide)
    ]
    return max(map(difference, *both))


def _head_outputs(passes: FastPasses, target: FastPasses | None) -> Iterator[_Compared]:
    """Logits, and hidden states if drafting continues on them, after several tokens, one, two siblings."""
    static, generator = passes.static, torch.Generator().manual_seed(0)
    reference = static.reference()
    for seed in range(_COMPARISONS):
        if static.shares_kv:
            plain, fast = _beside_target(passes, reference, target, generator)
        else:
            plain, fast = _alone(passes, reference)
        for width in (*_TRIED_WIDTHS[::-1], *[2] * (not static.reads_chains_only)):
            width += (block := static.fewest - 1)
            inputs = torch.randn(width, *static.input_widths, generator=generator).to(static.device, static.dtype)
            tokens = torch.tensor(some_tokens(static, width, seed), device=static.device)
            siblings: Tensor | None = None
            positions: Tensor | None = None
            if width == 2:
                siblings = torch.eye(2, plain.length + 2, dtype=torch.bool, device=static.device).roll(plain.length, 1)
                siblings[:, : plain.length] = True
                positions = torch.full_like(tokens, plain.length)
            rows_wanted = width * static.logit_rows
            expected = plain.forward(tokens, rows_wanted, siblings, positions, inputs.to(static.inner_dtype))
            yield static.product_dtype, expected, fast.forward(tokens, rows_wanted, siblings, positions, inputs), None
            if static.feature_layers:
                yield static.dtype, plain.features, fast.features, None
            for cached in (plain, fast):
                cached.rewind(cached.length - block)


def _alone(passes: FastPasses, reference: HeadModel) -> tuple[CachedModel, CachedModel]:
    """Readers with a head, by the reference and by these passes over rows of zeros."""
    static, stopwatch = passes.static, Stopwatch(passes.static.device)
    fast = StaticModel(static.original, stopwatch, passes, static.feature_layers)
    _clear(fast.buffers)
    return CachedModel(reference, stopwatch, static.feature_layers), fast


def _beside_target(
    passes: FastPasses, reference: HeadModel, target: FastPasses | None, generator: torch.Generator
) -> tuple[CachedModel, CachedModel]:
    """The same of an assistant, after a text of which the target has arbitrary keys and values."""
    if target is None:
        raise SpecvizError(
            "The target has no fast passes, so the {name} has no keys and values to read.",
            "passes",
            name=passes.static.name,
        )
    of_target = StaticModel(target.static.original, Stopwatch(target.static.device), target)
    of_target.buffers.reserve(_TEXT)
    of_target.length = _TEXT
    for rows in passes.static.kv_in_use(of_target.buffers.tensors):
        rows.copy_(torch.randn(rows.shape, generator=generator))
    return assistant_reader(reference, of_target, None), assistant_reader(passes.static.original, of_target, passes)


def _clear(buffers: KeyValueBuffers) -> None:
    """Zeroes all rows: a pass that writes nothing might find those of another one."""
    for rows in buffers.tensors:
        rows.zero_()


def _refuse_short_memory(static: StaticPass) -> None:
    """Raises SpecvizError (field ``passes``) where graphs of these passes would leave no memory for texts."""
    needed, free = graph_bytes(static), free_memory(static.device)
    if needed > free:
        raise SpecvizError(
            "CUDA graphs of {name} would take about {needed} of memory, but only {free} are free.",
            "passes",
            name=static.name,
            needed=Bytes(needed),
            free=Bytes(free),
        )


def graph_bytes(static: StaticPass) -> int:
    """A rough count of the memory that recorded passes take beside the weights."""
    logits = _LOGITS * WIDTHS[-1] * static.logit_rows * static.vocab_size * 4
    row = sum(heads * size for heads, size in static.kv_shapes) * static.inner_dtype.itemsize
    return _GRAPHS + logits + (0 if static.shares_kv else 2 * _POSITIONS * row)


@torch.inference_mode()
def _refuse_slower(passes: FastPasses, slower: StaticPass) -> None:
    """Raises SpecvizError (field ``passes``) if fast passes, over one token or several, take longer than `slower`.

    Over one too: plain decoding would lose by them, and speculation would only seem to gain.
    """
    runs = {"slower": (slower, slower), "fast": (passes.static, passes.run)}
    seconds: dict[tuple[str, Hashable], list[float]] = {}
    for _, width, (kind, (static, run)) in itertools.product(range(_REPEATS), _TRIED_WIDTHS, runs.items()):
        inputs = static.examples(width)
        start = time.perf_counter()
        run(*inputs)
        seconds.setdefault((kind, width), []).append(time.perf_counter() - start)
    _refuse_longer(seconds)


def _refuse_longer(seconds: dict[tuple[str, Hashable], list[float]]) -> None:
    """seconds: by (``slower`` or ``fast``, what was run)."""
    typical = {run: statistics.median(times) for run, times in seconds.items()}
    if any(typical["fast", run] > typical["slower", run] for kind, run in seconds if kind == "fast"):
        raise SpecvizError("Compiled passes were made, but are no faster here than the present ones.", "passes")


@torch.inference_mode()
def _refuse_slower_graphs(passes: GraphedPasses, slower: GraphedPasses) -> None:
    """The same of graphs that both have, by the device's clock. What is read goes to the spare place and takes as long
    as anything."""
    stopwatch = Stopwatch(passes.static.device)
    seconds: dict[tuple[str, Hashable], list[float]] = {}
    shapes = passes.graphs.keys() & slower.graphs.keys()
    for _, shape, (kind, run) in itertools.product(range(_REPEATS), shapes, (("slower", slower), ("fast", passes))):
        graph = run.graphs[shape]
        with stopwatch.span():
            graph.replay(graph.padding)
        stopwatch.synchronize()
        seconds.setdefault((kind, shape), []).append(stopwatch.take_spans())
    _refuse_longer(seconds)
