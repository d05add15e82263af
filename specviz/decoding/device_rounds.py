"""Rounds that a device makes without waiting for the host, which reads each of them one round later.

Draft, verdict and the text's new end stay on the device: the host launches the next round before it knows the last one.
It finds out then whether the text ended; a round that was launched after the end is dropped.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from specviz.decoding.continuation import Continuation
from specviz.decoding.decoder import Decoder
from specviz.decoding.fetched import Fetched
from specviz.decoding.host_rounds import HostRounds, MadeRound
from specviz.decoding.recorded_rounds import Recorded, RecordedRound, Way
from specviz.decoding.request import Request
from specviz.passes.cuda_graphs import MEETINGS
from specviz.passes.devices import Mark
from specviz.records.runs import LengthChoice, Seconds
from specviz.rules.draft import Verdict
from specviz.rules.transfer import on_cpu, to_device
from specviz.theory.draft_length import DraftLength

#: How many rounds may be under way.
LEAD = 2

#: The ways of decoding whose recordings are kept; the least recently used goes first. More than take turns in a
#: comparison, or each would be recorded anew every time.
KEPT_WAYS = 32


@dataclass(slots=True)
class Flight:
    """A round under way."""

    round: RecordedRound
    choice: LengthChoice
    marks: list[Mark]  # when it was begun, then after each part
    row: Tensor  # its record, on the host once the last mark is reached


class DeviceRounds(HostRounds):
    """Makes the rounds of a run ahead of the host wherever they are recorded, and the others as the host does."""

    def __init__(self, request: Request, decoder: Decoder, length: DraftLength, way: Way):
        super().__init__(request, decoder, length)
        self.way = way
        self.flying: deque[Flight] = deque()
        self.waiting: LengthChoice | None = None  # of a round that cannot begin yet
        self.recorded: Recorded | None = None  # while the text is on the device
        self.met: Counter[int] = Counter()  # depths that were not recorded
        self.read = 0  # the places that the drafter has read, so far as is known
        self.unread = 0  # the most that it may have to read next
        self.last: Mark | None = None  # when the last round ended
        self.slots: list[Tensor] = []  # page-locked, where records arrive

    @classmethod
    def of(cls, request: Request, decoder: Decoder, length: DraftLength) -> HostRounds:
        """Without them where some part of the rounds cannot be recorded."""
        drafter, rule, deepest = decoder.drafter, request.deciding_rule, request.num_draft_tokens
        passes = decoder.target.graphs
        if rule.on_device is None or passes is None:
            return HostRounds(request, decoder, length)
        ahead = drafter.ahead(deepest)
        if ahead is not None:
            deepest = int(min(deepest, ahead.deepest))
        elif deepest:
            return HostRounds(request, decoder, length)
        layers, coins = tuple(drafter.feature_layers), 2 * request.largest_draft + 1
        way = Way(passes, ahead, deepest, rule, request.warper, layers, drafter.reachable, coins)
        return cls(request, decoder, length, way)

    def next(self, text: Continuation) -> MadeRound:
        while self._may_begin(text):
            choice, self.waiting = self.waiting or self.length.choose(), None
            if self._begun(text, choice):
                continue
            if not self.flying:
                self._leave(text)
                return self._made(text, time.perf_counter(), choice)
            self.waiting = choice
        return self._landed(text)

    @property
    def _under_way(self) -> int:
        """The most tokens that rounds under way may add."""
        return sum(flight.round.depth + 1 for flight in self.flying)

    def _may_begin(self, text: Continuation) -> bool:
        """True if a next round is certain, and what it may draft."""
        if not self.flying:
            return True
        certain = text.room - self._under_way >= self.way.deepest
        return self.waiting is None and len(self.flying) < LEAD and certain

    def _begun(self, text: Continuation, choice: LengthChoice) -> bool:
        """Launches the next round; False if that has to wait, or is for the host to make."""
        depth = min(self.way.deepest, self.request.depth(choice.depth, text.room))
        if depth and self.length.as_chain and self.request.branches > 1:
            return False
        if not self.flying:
            self._prepare(text, depth)
        recorded = self._recording(text, depth)
        if recorded is not None:
            self._launch(recorded, choice)
        return recorded is not None

    def _recording(self, text: Continuation, depth: int) -> RecordedRound | None:
        """The round that drafts so deep, if it can be launched after those under way."""
        length = len(text.committed) + self._under_way
        if depth and (length + depth > self.way.drafting.limit + 1 or self.unread > self.way.drafting.unread):
            return None
        if self.recorded is None or length + self.way.margin >= self.recorded.room:
            return None
        return self.recorded.rounds.get(depth)

    # Off the clock: nothing is under way.

    def _prepare(self, text: Continuation, depth: int) -> None:
        """Puts the text on the device, and has a round recorded that drafts so deep, where that is worth it."""
        kept = self.way.target.whole_rounds
        if self._recording(text, depth) is not None or len(text.committed) < 2 or kept is None:
            return
        self._leave(text)
        self.way.reserve(len(text.committed))
        if self.decoder.target.graphs is None:
            return
        recorded = self._found(kept)
        usual = {min(allowed, self.way.deepest) for allowed in self.request.depths}
        missing = sorted((usual if depth in usual else {depth}) - recorded.rounds.keys())
        if missing and depth not in usual:
            self.met[depth] += 1
            if self.met[depth] < MEETINGS:
                return
        self._enter(text, recorded)
        try:
            for absent in missing:
                recorded.record(absent)
        except RuntimeError as error:
            self.way.target.refuse_rounds(error)
            self._leave(text)

    def _found(self, kept: OrderedDict[Hashable, Recorded]) -> Recorded:
        """What an earlier run has recorded in this way, if it is over the same buffers; else nothing yet."""
        settings = self.request.settings
        facts = settings.sampling, self.way.rule.name, self.way.deepest, self.way.coins
        rooms = tuple(passes.kept.room for passes in self.way.passes)
        way: Hashable = (settings.drafter, settings.drafting, *facts, rooms)
        recorded = kept.pop(way, None)
        if recorded is None or any(a is not b for a, b in zip(recorded.buffers, self.way.buffers)):
            recorded = Recorded(self.way)
        kept[way] = recorded
        if len(kept) > KEPT_WAYS:
            kept.popitem(last=False)
        return recorded

    def _enter(self, text: Continuation, recorded: Recorded) -> None:
        """Hands the text to the device."""
        committed, there = text.committed, recorded.text
        self.read, features = self.decoder.drafter.enter(committed)
        self.unread = len(committed) - self.read - (features is not None)
        if self.way.ahead is not None and self.way.ahead.shares:
            self.unread = 1
        there.ids[: len(committed)] = to_device(committed, there.ids.device)
        there.length.fill_(len(committed))
        there.read.fill_(self.read)
        if features is not None:
            assert there.features is not None, "there is room for what the drafter reads"
            there.features[self.read : len(committed) - 1] = features
        self.recorded, self.last = recorded, None

    def _leave(self, text: Continuation) -> None:
        """Takes the text back."""
        if self.recorded is None:
            return
        committed, features = len(text.committed), self.recorded.text.features
        unread = None if features is None else features[self.read : committed - 1].clone()
        self.decoder.drafter.leave(committed, self.read, unread)
        self.recorded = None

    # On the clock

    def _launch(self, round_: RecordedRound, choice: LengthChoice) -> None:
        clock = self.decoder.target.stopwatch
        round_.recorded.coins.copy_(self.decoder.coins.row())
        marks = [clock.mark()]
        for replay in round_.replays:
            replay(())
            marks.append(clock.mark())
        row = self._slot(round_.record)
        row.copy_(round_.record, non_blocking=True)
        marks[-1] = clock.mark()
        self.flying.append(Flight(round_, choice, marks, row))
        if round_.depth:
            self.unread = min(self.way.drafting.unread, round_.depth + 1)
        elif self.way.ahead is not None and not self.way.ahead.shares:
            self.unread += 1

    def _slot(self, record: Tensor) -> Tensor:
        """Room on the host for a record, until `LEAD` others have followed."""
        slot = self.slots.pop(0) if len(self.slots) > LEAD else None
        if slot is None or len(slot) < len(record):
            slot = torch.empty(2 * len(record), dtype=record.dtype, pin_memory=not on_cpu(record))
        self.slots.append(slot)
        return slot[: len(record)]

    def _landed(self, text: Continuation) -> MadeRound:
        """Waits for the first of the rounds under way."""
        flight, clock = self.flying.popleft(), self.decoder.target.stopwatch
        clock.wait_for(flight.marks[-1])
        row, layout, depth = flight.row.clone(), flight.round.layout, flight.round.depth
        host = layout.read(row, "kept", "token", "next_token", "likeliest", "judged_by")
        path = tuple(place for place, kept in enumerate(host.get("kept", ())) if kept)
        tokens = (*[host["token"][place] for place in path], host["next_token"])
        # What a round after this one has read is none of the text yet.
        self.decoder.target.length = len(text.committed) + len(path)
        if depth:
            self.read = self.way.drafting.read_after(len(text.committed), len(path), depth)
        # The tensors of its draft are the next round's by now.
        draft = flight.round.draft
        if draft.grown is not None:
            draft = replace(draft, parents=tuple([judge - 1 for judge in host["judged_by"]]))
        verdict = Verdict(path, tokens, tuple(host["likeliest"]), draft, None, row.nbytes)
        began, (drafted, verified, ended) = flight.marks[0], flight.marks[-3:]
        total = clock.between(began if self.last is None else self.last, ended)
        self.last = ended
        drafting, verifying = clock.between(began, drafted), clock.between(drafted, verified)
        seconds = Seconds(drafting, verifying, total - drafting - verifying, total, drafting + verifying)
        timed = lambda prefill: replace(seconds, prefill=prefill)  # noqa: E731
        return MadeRound(verdict, flight.choice, timed, partial(Fetched.unpacked, layout, row))
