"""A run's rounds in calls of C++ (rounds.cpp): the target's pass and the verdict, and drafts that need nobody else.
Where nobody else is needed, a call makes several rounds."""

from __future__ import annotations

import ctypes
import functools
import math
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.passes.kernels import kernel_library
from specviz.passes.kernels.chains import Fusion, GivenChoice, GivenOnePass, OnePass
from specviz.passes.kernels.judging import Judged, found_rows, numbers_made, refuse_other_than_numbers
from specviz.passes.kernels.opened import memories
from specviz.passes.made_drafts import Choice, RawDraft
from specviz.passes.readers import StaticModel
from specviz.passes.static_passes import WIDEST
from specviz.rules.draft import Draft, Uniforms


@dataclass(frozen=True, slots=True)
class SelfReliant:
    """What drafts after a text by itself, once its drafter has read the prompt: a model, a head, or the text alone."""

    reader: StaticModel | None = None  # with passes that C++ can run; None: the text is copied
    deepest: float = math.inf  # how deep it drafts
    limit: float = math.inf  # how many positions it knows; the last token of a draft is never read
    is_head: bool = False  # reads each token with the target's hidden state of the token before
    fusion: Fusion | None = None  # of these states, where that is yet to be done
    states: Tensor | None = None  # [n, width], those that it has yet to read
    one_pass: OnePass | None = None  # by which it makes all rows of a draft; None: it makes a pass for each level
    shares: bool = False  # keys and values with the target, whose first layers are its own: it has read what that has
    ngrams: tuple[int, int] = (0, 0)  # how many of the text's last tokens, at least and at most, are looked up in it

    @property
    def readers(self) -> list[StaticModel]:
        return [] if self.reader is None else [self.reader]

    def room(self, length: int, levels: int, branches: int) -> int:
        """How many places it needs to draft after so many tokens."""
        if self.one_pass is None:
            return length + (levels - 1) * branches
        return length + 1 + len(self.one_pass.masks or ())

    def levels(self, committed: int, budget: int) -> int:
        """How many levels it drafts after so many tokens, at most `budget`."""
        return max(0, int(min(budget, self.deepest, self.limit + 1 - committed)))

    def longest(self, length: int) -> int:
        """How long a text may become, at most `length`, if all that is drafted after it is to be read."""
        return int(min(length, self.limit + 2))


#: For how many seconds rounds may be made in one call: nobody sees a text that comes so much later.
PATIENCE = 0.02


class Ahead(ctypes.Structure):
    """How far rounds may go in one call: how many, and how long the text may become, both at most."""

    _fields_ = (("rounds", ctypes.c_int64), ("length", ctypes.c_int64), ("seconds", ctypes.c_double))

    rounds: int

    @classmethod
    def of(cls, rounds: int, length: int) -> Ahead:
        return cls(rounds, length, PATIENCE)


#: One round alone.
ONE = Ahead(1)


class RoundsInOneCall:
    """Rounds after one text.

    committed: the prompt, which the target has read but for its last token. coins: how many of each kind a round has
    (`Uniforms.of`). temperature, as_block: see `JudgedDraft`. drafting: what drafts by itself; None: drafts are given.
    ends: tokens after which there is no further round.
    """

    def __init__(
        self,
        target: StaticModel,
        committed: Sequence[int],
        coins: int,
        temperature: float,
        as_block: bool,
        drafting: SelfReliant | None,
        ends: Collection[int] = (),
    ):
        static = target.passes.static
        self.target, self.drafting, self.vocab = target, drafting, static.vocab_size
        self.length = len(committed)
        self._coins_before = 2 * coins * torch.double.itemsize  # all of a round lie in a row; the last is never missing
        self._orders: dict[Choice | None, _Order] = {None: _Order()}
        self._kv: dict[bool, Sequence[Tensor]] = {}  # by whether it is the drafter's: what C++ was told of
        readers = [target, *(drafting.readers if drafting else ())]
        programs = [reader.passes.opened for reader in readers]
        self._programs = [program for program in programs if program is not None]  # may be closed after this only
        target_program, *drafters = [program.handle for program in self._programs]
        places = [1 + static.feature_layers.index(layer) for layer in target.feature_layers]
        hidden = target.model.config.get_text_config().hidden_size
        self._state_width = 0 if drafting else len(places) * hidden  # of states that are handed over
        states = None if drafting is None or drafting.states is None else drafting.states.contiguous()
        one_pass = None if drafting is None else drafting.one_pass
        shortest, longest = drafting.ngrams if drafting else (0, 0)
        setup = _Setup(
            target_program,
            drafters[0] if drafters else None,
            ctypes.addressof(drafting.fusion.struct) if drafting and drafting.fusion else None,
            None if one_pass is None else ctypes.pointer(GivenOnePass.of(one_pass)),
            longest,
            shortest,
            bool(drafting and drafting.is_head),
            bool(drafting and drafting.shares),
            self.vocab,
            coins,
            WIDEST,
            temperature,
            as_block,
            len(places),
            (ctypes.c_int64 * len(places))(*places),
            len(ends),
            (ctypes.c_int64 * len(ends))(*ends),
        )
        self._setup, library = setup, kernel_library.library()
        self._make, self._status = library.few_rows_rounds, ctypes.c_int64()
        library.few_rows_rounds.restype = ctypes.c_int64
        library.few_rows_begin.restype = ctypes.c_void_p
        run = library.few_rows_begin(
            ctypes.byref(setup),
            ctypes.c_int64(len(committed)),
            (ctypes.c_int64 * len(committed))(*committed),
            ctypes.c_int64(drafting.reader.length if drafting and drafting.reader else 0),
            None if states is None else memories([states]),
        )
        self._run = ctypes.c_void_p(run)
        weakref.finalize(self, library.few_rows_end, self._run)

    def rounds(self, levels: int, choice: Choice | None, uniforms: Uniforms, ahead: Ahead = ONE) -> list[MadeRound]:
        """Rounds that need nobody else, at least one: they draft `levels` levels by themselves, by this choice, if any.

        uniforms: of the first; those of the others follow them in memory.
        """
        assert self.drafting is not None or not levels, "drafts are given"
        branches = choice.branches if choice else 1
        # The target's first: a drafter that shares it is told of what there is then.
        self._reserve(self.target, self.length + levels * branches)
        if levels and self.drafting and self.drafting.reader:
            room = self.drafting.room(self.length, levels, branches)
            self._reserve(self.drafting.reader, room, of_drafter=True)
        if choice not in self._orders:
            self._orders[choice] = _Order(0, choice and ctypes.pointer(GivenChoice.of(choice)))
        order = self._orders[choice]
        order.levels = levels
        return self._made(order, uniforms, ahead)

    def judged(self, draft: Draft, uniforms: Uniforms) -> MadeRound:
        """A round with this draft, which may be empty."""
        count = len(draft.parents)
        if not count and not self._state_width:
            (made,) = self.rounds(0, None, uniforms)
            return made
        rows, row_count = found_rows(draft)
        place, parents = None if rows is None else rows.data_ptr(), (ctypes.c_int64 * count)(*draft.parents)
        tokens, drawn_from = draft.tokens.data_ptr(), None if draft.probs is None else place
        states: Tensor | None = None
        if self._state_width:
            read = self.length - self.target.length + count
            states = torch.empty(read, self._state_width, dtype=self.target.passes.static.dtype)
        given = count, tokens, ctypes.addressof(parents), place, drawn_from, row_count
        order = _Order(0, None, None, *given, None if states is None else states.data_ptr())
        self._reserve(self.target, self.length + count)
        (made,) = self._made(order, uniforms)
        if states is not None:
            made.states = states[: len(states) - count + made.accepted]
        return made

    def _made(self, order: _Order, uniforms: Uniforms, ahead: Ahead = ONE) -> list[MadeRound]:
        order.uniforms, made, count = uniforms.next.data_ptr() - self._coins_before, (_Made * ahead.rounds)(), 0
        status = self._status
        if not status.value:  # or else the round that failed would be the next
            count = self._make(self._run, *map(ctypes.byref, (order, ahead, made, status)))
        if not count:
            self._refuse(status.value)
        rounds = [MadeRound(one, self.vocab) for one in made[:count]]
        self.length += sum([one.accepted + 1 for one in rounds])
        return rounds

    def _refuse(self, status: int) -> None:
        if status == -1:
            raise RuntimeError(f"A compiled pass of {self.target.passes.static.name} failed, or of its drafter.")
        if status == -4:
            raise MemoryError
        refuse_other_than_numbers(status + 1)

    def _reserve(self, reader: StaticModel, length: int, of_drafter: bool = False) -> None:
        """Makes room for so many tokens, and says where."""
        reader.buffers.reserve(length)
        kv = reader.buffers.tensors
        if self._kv.get(of_drafter) is not kv:
            self._kv[of_drafter] = kv
            in_use = reader.passes.static.kv_in_use(kv)
            count = ctypes.c_int64(len(in_use))
            kernel_library.library().few_rows_rooms(self._run, ctypes.c_bool(of_drafter), count, memories(in_use))


class MadeRound(Judged):
    """A round, and in memory of C++'s all that its record is made of."""

    #: [rows, width], the target's of the tokens that it has read and that stay, for drafters that are asked.
    states: Tensor | None = None

    def __init__(self, made: _Made, vocab: int):
        n, accepted = made.count, made.accepted
        told = tuple(made.told[: 3 * n + accepted + 2])
        self.accepted = accepted
        super().__init__(n, vocab, told[:accepted], told[3 * n + 1 :])
        self.choices, self.parents = told[n : 2 * n + 1], told[2 * n + 1 : 3 * n + 1]  # of each row the likeliest token
        self.drafting, self.verifying, self.seconds = made.drafting, made.verifying, made.all  # the last: of all of it
        self.read = made.read  # how much of the text the drafter has read
        self._made = made

    def __del__(self, library: Callable[[], ctypes.CDLL] = kernel_library.library) -> None:
        # At the interpreter's end the module's own names may be gone.
        library().few_rows_forget(self._made.round)

    @property
    def bytes(self) -> int:
        """Of what is as wide as the vocabulary."""
        n, vocab = self._shape
        rows = n + 1 + self._made.draft_rows + (n if self._made.draft_probs else 0)
        return 4 * (rows * vocab + (numbers_made(n, vocab) if self._made.numbers else 0))

    @property
    def numbers(self) -> Tensor:
        return self._tensor(self._made.numbers, numbers_made(*self._shape))

    @property
    def logits(self) -> Tensor:
        """[n + 1, vocab] float32, the target's."""
        n, vocab = self._shape
        return self._tensor(self._made.logits, n + 1, vocab)

    @property
    def draft(self) -> RawDraft:
        """Where it was not given."""
        n, vocab = self._shape
        tokens = self._tensor(self._made.tokens, n, dtype=torch.long)
        probs = self._tensor(self._made.draft_probs, n, vocab) if self._made.draft_probs else None
        return RawDraft(
            tokens, self.parents, self._tensor(self._made.draft_logits, self._made.draft_rows, vocab), probs
        )

    def _tensor(self, place: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The memory at this place, which stays as long as the tensor does."""
        count = functools.reduce(int.__mul__, shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(place)
        memory.owner = self
        return torch.frombuffer(memory, dtype=dtype).view(shape)


class _Setup(ctypes.Structure):
    """What stays the same in all rounds of a run, for C++, as all structures here."""

    _fields_ = (
        ("target", ctypes.c_void_p),
        ("drafter", ctypes.c_void_p),
        ("fusion", ctypes.c_void_p),
        ("one_pass", ctypes.POINTER(GivenOnePass)),
        *[(name, ctypes.c_int64) for name in ("longest", "shortest")],
        ("skipped", ctypes.c_int64),
        ("shares", ctypes.c_bool),
        ("vocab", ctypes.c_int64),
        ("coins", ctypes.c_int64),
        ("widest", ctypes.c_int64),
        ("temperature", ctypes.c_float),
        ("as_block", ctypes.c_bool),
        ("state_count", ctypes.c_int64),
        ("states", ctypes.POINTER(ctypes.c_int64)),
        ("end_count", ctypes.c_int64),
        ("ends", ctypes.POINTER(ctypes.c_int64)),
    )


class _Order(ctypes.Structure):
    _fields_ = (
        ("levels", ctypes.c_int64),
        ("choice", ctypes.POINTER(GivenChoice)),
        ("uniforms", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("found", ctypes.c_void_p),
        ("drawn_from", ctypes.c_void_p),
        ("found_rows", ctypes.c_int64),
        ("states", ctypes.c_void_p),
    )


class _Made(ctypes.Structure):
    _fields_ = (
        ("round", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("count", "accepted", "read", "draft_rows")],
        *[(name, ctypes.c_double) for name in ("drafting", "verifying", "all")],
        ("tokens", ctypes.c_void_p),
        ("told", ctypes.POINTER(ctypes.c_int64)),
        *[(name, ctypes.c_void_p) for name in ("draft_logits", "draft_probs", "logits", "numbers")],
    )
