"""What reads a text by passes over static buffers: the buffers, and the pass as it is, compiled, or as graphs."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from specviz.passes.made_drafts import DraftFunction
from specviz.passes.roles import TARGET, Role
from specviz.passes.static_passes import ROOM_STEP, StaticPass
from specviz.records.errors import SpecvizError

if TYPE_CHECKING:
    from specviz.passes.kernels.opened import OpenedProgram

#: The smallest room. Each larger one is twice the size, so that a long text needs few of them.
LEAST_ROOM = 256

#: A room is given up once this many texts have not reached it.
REMEMBERED_TEXTS = 8

#: Runs a pass (`StaticPass.forward`): the module itself, a compiled program, or a graph of it.
PassFunction = Callable[..., Sequence[Tensor]]


class KeyValueBuffers:
    """The buffers that hold one text's keys and values."""

    def __init__(self, static: StaticPass):
        self.static = static
        self.room = 0  # positions there are
        self.tensors: list[Tensor] = []  # [1, heads, room, head size], keys and values of each layer in turn
        self.cells = torch.empty(0, dtype=torch.long)  # [room] int64: 0, 1, 2, ...
        self.reserve(1)

    def reserve(self, length: int) -> None:
        """Makes room for at least `length` tokens, keeping what is there."""
        if length <= self.room:
            return
        held, old = self.room, self.tensors
        self.room = self.room_for(length)
        self.cells, self.tensors = self.take(self.room)
        if held:
            for new, filled in zip(self.tensors, old):
                new[:, :, :held] = filled

    def room_for(self, length: int) -> int:
        """The room to make for this many tokens."""
        return -(-length // ROOM_STEP) * ROOM_STEP

    def take(self, room: int) -> tuple[Tensor, list[Tensor]]:
        """`cells` and `tensors` of that room."""
        device = self.static.device
        # Zeros: an invisible place is still multiplied by 0, which must give 0 and not NaN.
        shapes = [(1, heads, room, size) for heads, size in self.static.kv_shapes]
        tensors = [torch.zeros(shape, dtype=self.static.inner_dtype, device=device) for shape in shapes]
        return torch.arange(room, device=device), tensors

    def places(self, length: int, count: int, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """The places of `count` tokens after the first `length`, [count] int64, and what they see, [count, room] bool.

        visible: [count, length + count] bool; None for a chain: everything before each token, and itself.
        """
        self.reserve(length + count)
        where = self.cells[length : length + count]
        if visible is None:
            return where, where.unsqueeze(-1) >= self.cells
        return where, functional.pad(visible, (0, self.room - visible.shape[-1]))


class KeptBuffers(KeyValueBuffers):
    """Buffers that outlive the text they hold, one set for each room; one reader at a time has them.

    The last place of each room is spare: no text gets it, and what pads a pass goes there.
    """

    def __init__(self, static: StaticPass):
        self.by_room: dict[int, tuple[Tensor, list[Tensor]]] = {}
        self.reached: deque[int] = deque(maxlen=REMEMBERED_TEXTS)  # the rooms of the last texts
        self.reader: weakref.ref[object] | None = None
        super().__init__(static)

    def lend(self, reader: object) -> bool:
        """Starts the text of `reader`, unless another one still has the buffers; returns whether it did.

        What they hold is never attended to before it is overwritten.
        """
        if self.reader is not None and self.reader() is not None:
            return False
        self.reader = weakref.ref(reader)
        self.reached.append(self.room)
        for room in [room for room in self.by_room if room > max(self.reached)]:
            del self.by_room[room]
        self.room = 0
        self.reserve(1)
        return True

    def reserve(self, length: int) -> None:
        super().reserve(length + 1)

    def room_for(self, length: int) -> int:
        room = LEAST_ROOM
        while room < length:
            room *= 2
        return room

    def take(self, room: int) -> tuple[Tensor, list[Tensor]]:
        if room not in self.by_room:
            self.by_room[room] = super().take(room)
        return self.by_room[room]

    def holds(self, tensor: Tensor) -> bool:
        """True if this is one of the tensors of a room that was not given up."""
        return any(tensor is one for _, tensors in self.by_room.values() for one in tensors)

    def has(self, room: int, kv: Sequence[Tensor]) -> bool:
        """True if these are some of that room's tensors."""
        return room in self.by_room and any(kv[0] is tensor for tensor in self.by_room[room][1])


class FastPasses:
    """Runs the passes of one model over static buffers."""

    def __init__(self, static: StaticPass, run: PassFunction, kind: str):
        self.static = static  # the pass as a module
        self.run = run  # the same, made faster; or the module itself
        self.kind = kind  # what `run` is: ``kernels``, ``compiled``, ``graphs`` or ``plain``
        self.rows_are_alike = False  # a token's results are the same, bit by bit, whatever else is in its pass
        self.opened: OpenedProgram | None = None  # `run`, if C++ can run it too
        self.draft: DraftFunction | None = None  # drafts in one call, where that is possible
        self.refusal: SpecvizError | None = None  # why it runs other passes than were prepared
        self.rounds_refusal: SpecvizError | None = None  # why whole rounds of these cannot be recorded

    @classmethod
    def unprepared(cls, static: StaticPass) -> FastPasses:
        """The pass operation by operation."""
        return cls(static, static, "plain")

    @property
    def by_kernels(self) -> bool:
        """True if our kernels run it: so they are loaded, everything lies in host memory, and logits are float32."""
        return self.static.few_rows is not None

    @property
    def chain_width(self) -> int | None:
        """Of the logits of chains drafted in one call; None if they are not."""
        return None if self.draft is None else self.static.vocab_size

    def first_layers(self, layers: int) -> FastPasses:
        """Unprepared passes that leave the model after its first `layers` layers."""
        return FastPasses.unprepared(self.static.first_layers(layers))

    def buffers(self, reader: object) -> KeyValueBuffers:
        """Empty buffers to hold the text of `reader`."""
        return KeyValueBuffers(self.static)

    def between_rounds(self, meetings: int = 2) -> None:
        """Time, off the clock, to make later passes faster; needs none unless passes are recorded as they are met.

        meetings: how often a shape must have been met to be worth it.
        """

    def free(self) -> None:
        """Gives up model and programs, even if a past run still holds this object. It cannot run afterwards."""
        del self.static, self.run
        self.draft = self.opened = None

    def read(
        self,
        token_ids: Tensor,
        positions: Tensor,
        where: Tensor,
        visible: Tensor,
        kv: Sequence[Tensor],
        feature_layers: Sequence[int] = (),
        inputs: Sequence[Tensor] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """One pass (`StaticPass.forward`): logits [n, vocab] and the hidden states asked for, side by side.

        feature_layers: some of those that the pass returns.
        """
        logits, *hidden = self.run(token_ids, positions, where, visible, *inputs, *kv)
        if not feature_layers:
            return logits, None
        by_layer = dict(zip(self.static.feature_layers, hidden, strict=True))
        return logits, torch.cat([by_layer[layer] for layer in feature_layers], -1)


def passing_time(passes: Mapping[Role, FastPasses]) -> Callable[[], None]:
    """A function to call after each round of a run: passes that are prepared between rounds get time for it, off the
    clock."""
    idle = FastPasses.between_rounds
    in_need = [each.between_rounds for each in passes.values() if type(each).between_rounds is not idle]

    def pass_time() -> None:
        for prepare in in_need:
            prepare()

    return pass_time


class OneThread:
    """A context in which torch's own operations take one thread if our kernels run all of these passes.

    Kernels have threads of their own (crew.h). One of torch's would look out for more work, after each operation, for
    milliseconds in which it keeps a core from them: SmolLM2's passes took 8.4 ms in rounds, and 5.3 ms by themselves.
    Around a round, not a run: between two rounds others compute in this thread. It is made once for all of a run's.
    """

    def __init__(self, passes: Mapping[Role, FastPasses]):
        self.alone = bool(passes) and all(model_passes.by_kernels for model_passes in passes.values())

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        if self.alone and self.before > 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self.alone and self.before > 1:
            torch.set_num_threads(self.before)


def kind_of(passes: Mapping[Role, FastPasses]) -> str:
    """The kind of the target's passes in a run with these: ``plain``, transformers' own, if there are none."""
    return passes[TARGET].kind if TARGET in passes else "plain"
