"""Rounds that a device makes without waiting for the host, which reads each of them one round later.

Draft, verdict and the text's new end stay on the device: the host launches the next round before it knows the last one.
It finds out then whether the text ended; a round that was launched after the end is dropped.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Hashable, MutableMapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from specviz.decoding.continuation import Continuation
from specviz.decoding.decoder import Decoder
from specviz.decoding.fetched import Fetched
from specviz.decoding.host_rounds import HostRounds, JudgedRound
from specviz.decoding.recorded_rounds import RecordedRound, Recordings, RoundSetup
from specviz.decoding.request import Request
from specviz.passes.cuda_graphs import MEETINGS
from specviz.passes.devices import Mark
from specviz.records.runs import LengthChoice, Seconds
from specviz.rules.draft import Verdict
from specviz.rules.transfer import on_cpu, to_device
from specviz.theory.draft_length import DepthPolicy

#: How many rounds may be under way.
LEAD = 2

#: The most setups whose recordings are kept; the least recently used goes first. More than take turns in a comparison,
#: or each would be recorded anew every time.
MOST_SETUPS = 32


@dataclass(slots=True)
class LaunchedRound:
    """A round under way."""

    round: RecordedRound
    choice: LengthChoice
    marks: list[Mark]  # when it was begun, then after each part
    row: Tensor  # its record, on the host once the last mark is reached


class DeviceRounds(HostRounds):
    """Makes the rounds of a run ahead of the host wherever they are recorded, and the others as the host does."""

    def __init__(self, request: Request, decoder: Decoder, policy: DepthPolicy, setup: RoundSetup):
        super().__init__(request, decoder, policy)
        self.setup = setup
        self.launched: deque[LaunchedRound] = deque()
        self.waiting: LengthChoice | None = None  # of a round that cannot begin yet
        self.recordings: Recordings | None = None  # while the text is on the device
        self.read = 0  # the places that the drafter has read, so far as is known
        self.unread = 0  # the most that it may have to read next
        self.last: Mark | None = None  # when the last round ended
        self.slots: list[Tensor] = []  # page-locked, where records arrive

    @classmethod
    def of(cls, request: Request, decoder: Decoder, policy: DepthPolicy) -> HostRounds:
        """The host's rounds where some part of a round cannot be recorded."""
        drafter, rule, deepest = decoder.drafter, request.deciding_rule, request.num_draft_tokens
        passes = decoder.target.graphs
        if rule.on_device is None or passes is None or request.grammar is not None:
            return HostRounds(request, decoder, policy)
        ahead = drafter.ahead(deepest)
        if ahead is not None:
            deepest = int(min(deepest, ahead.deepest))
        elif deepest:
            return HostRounds(request, decoder, policy)
        whole_rounds: MutableMapping[Hashable, Recordings] = passes.whole_rounds or {}
        for key in [key for key, made in whole_rounds.items() if made.lost]:
            del whole_rounds[key]  # or the rooms would stay in memory
        layers, coins = tuple(drafter.feature_layers), 2 * request.largest_draft + 1
        setup = RoundSetup(passes, ahead, deepest, rule, request.warper, layers, drafter.reachable, coins)
        return cls(request, decoder, policy, setup)

    def next(self, text: Continuation) -> JudgedRound:
        while self._may_begin(text):
            choice, self.waiting = self.waiting or self.policy.choose(), None
            if self._try_launch(text, choice):
                continue
            if not self.launched:
                self._leave(text)
                return self._make(text, time.perf_counter(), choice)
            self.waiting = choice
        return self._collect(text)

    @property
    def _under_way(self) -> int:
        """The most tokens that rounds under way may add."""
        return sum(launched.round.depth + 1 for launched in self.launched)

    def _may_begin(self, text: Continuation) -> bool:
        """True if there will be another round for certain, and its depth does not depend on those under way."""
        if not self.launched:
            return True
        certain = text.room - self._under_way >= self.setup.deepest
        return self.waiting is None and len(self.launched) < LEAD and certain

    def _try_launch(self, text: Continuation, choice: LengthChoice) -> bool:
        """Launches the next round; False if it has to wait, or the host has to make it."""
        depth = min(self.setup.deepest, self.request.allowed_depth(choice.depth, text.room))
        if depth and self.policy.drafts_chain and self.request.branches > 1:
            return False
        if not self.launched:
            self._prepare(text, depth)
        recorded = self._recording(text, depth)
        if recorded is not None:
            self._launch(recorded, choice)
        return recorded is not None

    def _recording(self, text: Continuation, depth: int) -> RecordedRound | None:
        """The recorded round of this depth, if it can be launched after those under way."""
        length = len(text.committed) + self._under_way
        if depth and (length + depth > self.setup.drafting.limit + 1 or self.unread > self.setup.drafting.unread):
            return None
        if self.recordings is None or length + self.setup.margin >= self.recordings.room:
            return None
        return self.recordings.rounds.get(depth)

    # Off the clock: nothing is under way.

    def _prepare(self, text: Continuation, depth: int) -> None:
        """Puts the text on the device, and records a round of this depth where that is worth it."""
        cache = self.setup.target.whole_rounds
        if self._recording(text, depth) is not None or len(text.committed) < 2 or cache is None:
            return
        self._leave(text)
        self.setup.reserve(len(text.committed))
        if self.decoder.target.graphs is None:
            return
        recordings = self._recordings(cache)
        usual = {min(allowed, self.setup.deepest) for allowed in self.request.depths}
        missing = sorted((usual if depth in usual else {depth}) - recordings.rounds.keys())
        if missing and depth not in usual:
            # By whatever run: nearly every text ends in a few shallow rounds.
            recordings.times_met[depth] += 1
            if recordings.times_met[depth] < MEETINGS:
                return
        self._enter(text, recordings)
        try:
            for absent in missing:
                recordings.record(absent)
        except RuntimeError as error:
            self.setup.target.refuse_rounds(error)
            self._leave(text)

    def _recordings(self, cache: OrderedDict[Hashable, Recordings]) -> Recordings:
        """What an earlier run with this setup has recorded, if over the same buffers; else none yet."""
        settings = self.request.settings
        facts = settings.sampling, self.setup.rule.name, self.setup.deepest, self.setup.coins
        rooms = tuple(passes.kept_buffers.room for passes in self.setup.passes)
        key: Hashable = (settings.drafter, settings.drafting, *facts, rooms)
        recordings = cache.pop(key, None)
        if recordings is None or any(a is not b for a, b in zip(recordings.buffers, self.setup.buffers)):
            recordings = Recordings(self.setup)
        cache[key] = recordings
        if len(cache) > MOST_SETUPS:
            cache.popitem(last=False)
        return recordings

    def _enter(self, text: Continuation, recordings: Recordings) -> None:
        """Hands the text to the device."""
        committed, device_text = text.committed, recordings.text
        self.read, features = self.decoder.drafter.enter(committed)
        self.unread = len(committed) - self.read - (features is not None)
        if self.setup.ahead is not None and self.setup.ahead.shares:
            self.unread = 1
        device_text.ids[: len(committed)] = to_device(committed, device_text.ids.device)
        device_text.length.fill_(len(committed))
        device_text.read.fill_(self.read)
        if features is not None:
            assert device_text.features is not None, "there is room for what the drafter reads"
            device_text.features[self.read : len(committed) - 1] = features
        self.recordings, self.last = recordings, None

    def _leave(self, text: Continuation) -> None:
        """Takes the text back."""
        if self.recordings is None:
            return
        committed, features = len(text.committed), self.recordings.text.features
        unread = None if features is None else features[self.read : committed - 1].clone()
        self.decoder.drafter.leave(committed, self.read, unread)
        self.recordings = None

    # On the clock

    def _launch(self, round_: RecordedRound, choice: LengthChoice) -> None:
        clock = self.decoder.target.stopwatch
        round_.recordings.coins.copy_(self.decoder.coins.row())
        marks = [clock.mark()]
        for replay in round_.replays:
            replay(())
            marks.append(clock.mark())
        row = self._slot(round_.record)
        row.copy_(round_.record, non_blocking=True)
        marks[-1] = clock.mark()
        self.launched.append(LaunchedRound(round_, choice, marks, row))
        if round_.depth:
            self.unread = min(self.setup.drafting.unread, round_.depth + 1)
        elif self.setup.ahead is not None and not self.setup.ahead.shares:
            self.unread += 1

    def _slot(self, record: Tensor) -> Tensor:
        """Room on the host for a record, until `LEAD` others have followed."""
        slot = self.slots.pop(0) if len(self.slots) > LEAD else None
        if slot is None or len(slot) < len(record):
            slot = torch.empty(2 * len(record), dtype=record.dtype, pin_memory=not on_cpu(record))
        self.slots.append(slot)
        return slot[: len(record)]

    def _collect(self, text: Continuation) -> JudgedRound:
        """Waits for the first of the rounds under way."""
        launched, clock = self.launched.popleft(), self.decoder.target.stopwatch
        clock.wait_for(launched.marks[-1])
        row, layout, depth = launched.row.clone(), launched.round.layout, launched.round.depth
        host = layout.read(row, "accepted", "token", "next_token", "likeliest", "judged_by")
        path = tuple(place for place, accepted in enumerate(host.get("accepted", ())) if accepted)
        tokens = (*[host["token"][place] for place in path], host["next_token"])
        # What a round after this one has read is none of the text yet.
        self.decoder.target.length = len(text.committed) + len(path)
        if depth:
            self.read = self.setup.drafting.read_after(len(text.committed), len(path), depth)
        # The draft's tensors are the next round's by now.
        draft = launched.round.draft
        if draft.grown is not None:
            draft = replace(draft, parents=tuple([judge - 1 for judge in host["judged_by"]]))
        verdict = Verdict(path, tokens, tuple(host["likeliest"]), draft.parents, lambda: draft, None, row.nbytes)
        began, (drafted, verified, ended) = launched.marks[0], launched.marks[-3:]
        total = clock.between(began if self.last is None else self.last, ended)
        self.last = ended
        drafting, verifying = clock.between(began, drafted), clock.between(drafted, verified)
        seconds = Seconds(drafting, verifying, total - drafting - verifying, total, drafting + verifying)
        timed = lambda prefill: replace(seconds, prefill=prefill)  # noqa: E731
        return JudgedRound(verdict, launched.choice, timed, partial(Fetched.unpacked, layout, row))
