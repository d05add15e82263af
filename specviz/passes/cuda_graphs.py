"""Records passes once as CUDA graphs and replays them, so that the host launches a whole pass at once; and whole rounds
(`specviz.decoding.device_rounds`).

A graph works on the very buffers it was recorded over. So a model's passes keep their buffers from text to text, and
each shape that is needed again gets a graph of its own, between two rounds.
"""

import bisect
import contextlib
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specviz.passes.fast_passes import FastPasses, KeptBuffers, KeyValueBuffers
from specviz.passes.static_passes import StaticPass
from specviz.records.errors import SpecvizError
from specviz.records.stopwatch import garbage_collector_off

#: The most graphs kept at a time; the least recently used goes first. All share one memory pool.
MOST_GRAPHS = 48

#: How many tokens a graph reads; passes in between are padded. Wider ones, which read prompts, run without a graph.
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 80)

#: How often a shape has been needed, by one text or by several, before it is recorded. Prompts are read in few shapes,
#: as they are padded to `WIDTHS`; without a graph a short one takes as long as several rounds of a small model.
MEETINGS = 2

#: Runs before a recording: libraries initialise on their first calls, which must not be recorded.
WARM_UPS = 2

#: torch's tags of operations whose result, or the shape of it, depends on values.
_WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

#: A recorded pass: copies its arguments in, replays, and returns the outputs.
Replay = Callable[[Sequence[Tensor]], list[Tensor]]

#: Records a function of tensors, given example arguments. Raises RuntimeError if that fails.
Recorder = Callable[[Callable[..., Sequence[Tensor]], Sequence[Tensor]], Replay]


class Shape(NamedTuple):
    """What a graph is recorded for."""

    width: int  # tokens that the pass reads
    room: int

    @classmethod
    def holding(cls, least: int, room: int) -> "Shape":
        """The shape of the next of `WIDTHS`, at least that wide."""
        return cls(WIDTHS[bisect.bisect_left(WIDTHS, least)], room)


@dataclass(frozen=True, slots=True)
class Graph:
    """A recorded pass."""

    kv: Sequence[Tensor]  # the buffers that it works on
    padding: tuple[Tensor, ...]  # the other arguments of a pass that reads nothing, see `GraphedPasses._padding`
    replay: Replay


class GraphedPasses(FastPasses):
    """The passes of one model as graphs, one for each `Shape`.

    A model whose passes cannot be recorded goes on with plain ones; `refusal` says why.
    record: such as `CudaRecorder`. kept_buffers: those to work on, if shared with the model whose first layers this is.
    """

    def __init__(self, static: StaticPass, record: Recorder, kept_buffers: KeptBuffers | None = None):
        super().__init__(static, self._run, "graphs")
        self.record = record
        self.graphs: OrderedDict[Shape, Graph] = OrderedDict()
        self.times_met: Counter[Shape] = Counter()  # shapes without a graph
        self.kept_buffers = kept_buffers or KeptBuffers(static)
        #: Whole rounds of which these passes are a part, by the way in which they are made; None if they cannot be
        #: recorded (`specviz.decoding.device_rounds`).
        self.whole_rounds: OrderedDict[Hashable, Any] | None = OrderedDict()

    def free(self) -> None:
        super().free()
        self.graphs.clear()
        del self.kept_buffers
        self.whole_rounds = None

    def buffers(self, reader: object) -> KeyValueBuffers:
        """The kept buffers if no other reader has them; else new ones, whose passes run without graphs."""
        return self.kept_buffers if self.kept_buffers.lend(reader) else KeyValueBuffers(self.static)

    def between_rounds(self, meetings: int = MEETINGS) -> None:
        for shape in [shape for shape, graph in self.graphs.items() if not self.kept_buffers.has(shape.room, graph.kv)]:
            del self.graphs[shape]
        for shape in [shape for shape, count in self.times_met.items() if count >= meetings]:
            del self.times_met[shape]
            if self.refusal is None and shape.room in self.kept_buffers.by_room:
                self._record(shape)

    @torch.inference_mode()
    def _record(self, shape: Shape) -> None:
        kv, padding = self.static.kv_in_use(self.kept_buffers.by_room[shape.room][1]), self._padding(shape)
        try:
            # Nothing but the spare place is written, so a text may be in the buffers.
            replay = self.record(lambda *inputs: self.static(*inputs, *kv), padding)
        except RuntimeError as error:
            self._refuse(error)
            return
        self.graphs[shape] = Graph(kv, padding, replay)
        if len(self.graphs) > MOST_GRAPHS:
            self.graphs.popitem(last=False)

    def _refuse(self, error: RuntimeError) -> None:
        """From now on passes are plain ones."""
        self.graphs.clear()
        self.kind, self.whole_rounds = "plain", None
        self.refusal = _cannot_record(self.static, error)

    def refuse_rounds(self, error: RuntimeError) -> None:
        """From now on the host has a part in every round."""
        self.whole_rounds = None
        self.rounds_refusal = SpecvizError(
            "Whole rounds of {name} cannot be recorded as CUDA graphs: {reason}.",
            "passes",
            name=self.static.name,
            reason=_reason(error),
        )

    def _padding(self, shape: Shape) -> tuple[Tensor, ...]:
        """Arguments of a pass whose tokens all go to the spare place and see nothing else."""
        device, spare = self.static.device, shape.room - 1
        tokens = torch.zeros(shape.width, dtype=torch.long, device=device)
        alone = (torch.arange(shape.room, device=device) == spare).repeat(shape.width, 1)
        sizes = self.static.input_widths
        inputs = [torch.zeros(shape.width, size, dtype=self.static.dtype, device=device) for size in sizes]
        return tokens, tokens.clone(), tokens + spare, alone, *inputs

    def _run(self, *arguments: Tensor) -> Sequence[Tensor]:
        count, room = arguments[3].shape
        *changing, first = arguments[: len(arguments) - len(self.static.kv_shapes) + 1]
        if count > WIDTHS[-1] or not self.works_on(first):
            return self.static(*arguments)
        # A block is the end of its pass, and nothing may come after it.
        graph = self._graph(Shape(count, room) if self.static.fewest > 1 else Shape.holding(count, room), first)
        if graph is None:
            return self.static(*arguments)
        return [output[:count] for output in graph.replay(_padded(changing, graph.padding))]

    def works_on(self, first: Tensor) -> bool:
        """True if graphs work on the text with these first keys."""
        return self.refusal is None and first is self.static.kv_in_use(self.kept_buffers.tensors)[0]

    def _graph(self, shape: Shape, first: Tensor) -> Graph | None:
        """The graph for this shape, once it is recorded over the buffers that begin with `first`."""
        graph = self.graphs.get(shape)
        if graph is None or graph.kv[0] is not first:
            self.times_met[shape] += 1
            return None
        self.graphs.move_to_end(shape)
        return graph


def _padded(arguments: Sequence[Tensor], padding: Sequence[Tensor]) -> Sequence[Tensor]:
    """Arguments of a pass over more tokens, which change nothing."""
    count = len(arguments[0])
    if count == len(padding[0]):
        return arguments
    return [torch.cat([argument, rest[count:]]) for argument, rest in zip(arguments, padding, strict=True)]


class CudaRecorder:
    """Records functions of tensors as CUDA graphs, all in one memory pool."""

    def __init__(self, device: torch.device):
        self.device = device
        # All recordings on one stream, since memory in a pool belongs to the stream it was first used on.
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()  # that live in the pool

    def __call__(self, function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> Replay:
        inputs = [example.clone() for example in examples]
        # torch records on the current device, whichever device the tensors are on.
        with torch.cuda.device(self.device):
            self._warm_up(function, inputs)
            graph, outputs = self._recorded(function, inputs)

        def replay(arguments: Sequence[Tensor]) -> list[Tensor]:
            if inputs:
                torch._foreach_copy_(inputs, list(arguments))
            graph.replay()
            # The next replay overwrites them, and the next recording may too.
            return [output.clone() for output in outputs]

        return replay

    def _warm_up(self, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> None:
        home = torch.cuda.current_stream()
        self.stream.wait_stream(home)
        try:
            with torch.cuda.stream(self.stream):
                for _ in range(WARM_UPS):
                    function(*inputs)
        finally:
            home.wait_stream(self.stream)

    def _recorded(
        self, function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, Sequence[Tensor]]:
        if not self.graphs:
            # A pool that has lost its last graph takes no other.
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        _forget_workspaces()
        # Other threads allocate meanwhile, which only the mode "thread_local" allows.
        recording = torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local")
        try:
            # The outer contexts: `torch.cuda.graph` does not leave the stream when its own end fails, and a graph that
            # is collected meanwhile ends the recording of this one.
            with garbage_collector_off(), torch.cuda.stream(self.stream), recording:
                outputs = function(*inputs)
        except RuntimeError:
            self._abandon()
            raise
        _forget_workspaces()
        self.graphs.add(graph)
        return graph, outputs

    def _abandon(self) -> None:
        """Ends what a failed recording leaves open in torch's allocator, which would never again release memory.

        `CUDAGraph::capture_end` raises before it comes to that (torch 2.13), and nothing public does it instead.
        """
        self.graphs.clear()
        device = torch.cuda.current_device()
        if hasattr(torch._C, "_cuda_endAllocateToPool"):
            # It raises if the recording got as far as ending properly.
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(device, self.pool)
                torch._C._cuda_releasePool(device, self.pool)


def _forget_workspaces() -> None:
    """Has cuBLAS take a new workspace with its next product.

    One taken outside a recording lies in ordinary memory, and when any graph of the stream dies torch gives it up
    (pytorch issue 193402): the others would go on working in memory that is somebody else's. So each recording begins
    without one and takes it from the pool, and nothing that is not recorded works in the pool's.
    """
    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):  # torch without CUDA has no such thing
        torch._C._cuda_clearCublasWorkspaces()


class _OnDevice(TorchDispatchMode):
    """Refuses operations that have the host wait for a value, which no recording survives."""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        picks = function in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
        if picks:
            waits = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1])
        else:
            waits = not _WAITING.isdisjoint(function.tags)
        if waits:
            raise RuntimeError(f"{function} needs a value on the host")
        return function(*arguments, **(named or {}))


@torch.no_grad()
def refuse_unrecordable(static: StaticPass) -> None:
    """Raises SpecvizError (field ``passes``) if a pass needs a value on the host, as some mixtures of experts do.

    To be asked first: a recording that fails can leave torch's allocator unusable.
    """
    arguments = [argument.to(static.device) for argument in static.examples(2)]
    try:
        with _OnDevice():
            static(*arguments)
    except RuntimeError as error:
        raise _cannot_record(static, error) from None


def _cannot_record(static: StaticPass, error: RuntimeError) -> SpecvizError:
    return SpecvizError(
        "The passes of {name} cannot be recorded as CUDA graphs: {reason}.",
        "passes",
        name=static.name,
        reason=_reason(error),
    )


def _reason(error: BaseException) -> str:
    """The words of the first error alone: a raised error keeps its frames alive, and through them the models."""
    while error.__context__ is not None:
        # Ending a recording that failed raises a further error, which says less.
        error = error.__context__
    return str(error).partition("\n")[0].rstrip(".")[:200]
