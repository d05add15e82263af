"""Records passes once as CUDA graphs and replays them, so that the host launches a whole pass at once.

A graph works on the very buffers it was recorded over. So a model's passes keep their buffers from text to text, and
each shape (tokens, room) gets its own graph when it first occurs.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.passes.static_passes import FastPasses, KeyValueBuffers, Static

#: The most graphs kept at a time; the least recently used goes first. All share one memory pool.
MOST_GRAPHS = 48

#: The smallest room. Each larger one is twice the size, so that a long text needs few of them.
LEAST_ROOM = 256

#: Wider passes, which read prompts, come once a text and in ever new widths: they run without a graph.
WIDEST_GRAPH = 80

#: A recorded pass: copies its arguments in, replays, and returns the outputs.
Replay = Callable[[Sequence[Tensor]], list[Tensor]]

#: Records a function of tensors, given example arguments.
Recorder = Callable[[Callable[..., Sequence[Tensor]], Sequence[Tensor]], Replay]


class KeptBuffers(KeyValueBuffers):
    """Buffers that outlive the text they hold: one set for each room ever asked for."""

    def __init__(self, static: Static):
        self.by_room: dict[int, tuple[Tensor, list[Tensor]]] = {}
        super().__init__(static)

    def room_for(self, length: int) -> int:
        room = LEAST_ROOM
        while room < length:
            room *= 2
        return room

    def take(self, room: int) -> tuple[Tensor, list[Tensor]]:
        if room not in self.by_room:
            self.by_room[room] = super().take(room)
        return self.by_room[room]

    def begin_again(self) -> None:
        """Starts another text: what the buffers hold is never attended to before it is overwritten."""
        self.room = 0
        self.reserve(1)


class GraphedPasses(FastPasses):
    """The passes of one model as graphs, one for each shape.

    record: such as `CudaRecorder`. kept: the buffers to work on, if shared with the model whose first layers this is.
    """

    def __init__(self, static: Static, record: Recorder, kept: KeptBuffers | None = None):
        super().__init__(static, self._run, "graphs")
        self.record = record
        self.graphs: OrderedDict[tuple[int, int], Replay] = OrderedDict()
        self.kept = kept or KeptBuffers(static)
        self.reader: weakref.ref | None = None

    def free(self) -> None:
        super().free()
        self.graphs.clear()
        self.kept = None

    def buffers(self, reader: object) -> KeyValueBuffers:
        """The kept buffers if no other reader has them; else new ones, whose passes run without graphs."""
        if self.reader is not None and self.reader() is not None:
            return KeyValueBuffers(self.static)
        self.reader = weakref.ref(reader)
        self.kept.begin_again()
        return self.kept

    def _run(self, *arguments: Tensor) -> Sequence[Tensor]:
        rows = arguments[len(arguments) - len(self.static.row_shapes) :]
        width, room = arguments[3].shape
        if width > WIDEST_GRAPH or rows[0] is not self.kept.take(room)[1][0]:
            return self.static(*arguments)
        key, changing = (width, room), arguments[: len(arguments) - len(rows)]
        if key not in self.graphs:
            self.graphs[key] = self.record(lambda *inputs: self.static(*inputs, *rows), changing)
            if len(self.graphs) > MOST_GRAPHS:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(key)
        return self.graphs[key](changing)


class CudaRecorder:
    """Records functions of tensors as CUDA graphs, all in one memory pool."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> Replay:
        inputs = [example.clone() for example in examples]
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            # Libraries initialise on their first calls, which must not be recorded.
            for _ in range(2):
                function(*inputs)
        torch.cuda.current_stream(self.device).wait_stream(side)
        with torch.cuda.graph(graph, pool=self.pool):
            outputs = function(*inputs)

        def replay(arguments: Sequence[Tensor]) -> list[Tensor]:
            for own, given in zip(inputs, arguments, strict=True):
                own.copy_(given)
            graph.replay()
            # The next replay overwrites them, and the next recording may too.
            return [output.clone() for output in outputs]

        return replay
