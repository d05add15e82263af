"""The rounds that an answer was made in, as far as an engine lets them be known.

Where it counts draft tokens at every token, they follow exactly. Where it only sends the tokens of a pass together,
they are inferred from that, and say so. Which draft tokens were rejected no engine says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from specviz.foreign.rounds import SCHEMA, round_of, show
from specviz.records.runs import Prompt, Round, Run, StopReason
from specviz.servers.answers import Ask, End, Piece

#: The engines' ends as those of a run.
_REASONS: dict[End, StopReason] = {"end": "eos", "length": "length", "stop": "stop_string"}


@dataclass(frozen=True, slots=True)
class ServerRound:
    """A round of a server's. Its end may be cut off by the answer's."""

    drafted: int
    accepted: int
    ids: tuple[int | None, ...]  # of its tokens in the text: those accepted, and the target's own
    pieces: tuple[str, ...]  # their texts

    def shown(self, index: int, greedy: bool) -> Round:
        """As the page shows it; without probabilities, which no engine gives for what it drafted."""
        # A known token without a text of its own shares one with those after it.
        texts = {id: piece if piece or id is None else "…" for id, piece in zip(self.ids, self.pieces)}
        kept = self.ids[: self.accepted]
        unknown: tuple[int | None, ...] = (None,) * (self.drafted - len(kept))
        fields: dict[str, object] = dict.fromkeys(("parents", "p", "q", "u", "following_u", "seconds"))
        fields |= {"tokens": [*kept, *unknown], "kept": self.accepted}
        fields["following"] = self.ids[self.accepted] if len(self.ids) > self.accepted else None
        round_ = round_of(index, fields, greedy, lambda id: texts.get(id, ""))
        dropped = self.accepted + 1 - len(self.ids)
        return replace(round_, emitted=self.ids, pieces=self.pieces, dropped=dropped)


@dataclass
class Rounds:
    """Puts rounds together from the pieces of an answer, in the order in which they come.

    depth: γ of an engine that drafts as many in every round and does not count them, 0 if it drafts none; None if that
    is not known.
    """

    depth: int | None = None
    inferred: bool = False  # whether any round rests on which tokens arrived together
    lengths_known: bool = True  # whether it is known of all rounds how many tokens were drafted
    tokens: int = 0  # so far
    _drafted: int = 0  # so far, as the server counts
    _accepted: int = 0
    _passes: int = 0
    #: The open round: drafted and accepted, its ids, their texts.
    _counts: tuple[int, int] = (0, 0)
    _ids: list[int | None] = field(default_factory=list)
    _pieces: list[str] = field(default_factory=list)

    def add(self, piece: Piece) -> Iterator[ServerRound]:
        """The rounds that are complete with this piece."""
        # A text of several tokens is the last one's, where the engine does not say which part is whose.
        apart = len(piece.texts) == len(piece.ids)
        texts = piece.texts if apart else (*[""] * (len(piece.ids) - 1), piece.text)
        for place, id in enumerate(piece.ids):
            if not self._ids:
                self._counts = self._counted(piece) or self._together(piece, len(piece.ids) - place)
            self._ids.append(id)
            self._pieces.append(texts[place])
            self.tokens += 1
            if len(self._ids) > self._counts[1]:
                yield self._close()
        if piece.end and self._ids:
            yield self._close()

    def _counted(self, piece: Piece) -> tuple[int, int] | None:
        """Drafted and accepted of the round that begins, where the server counts them: they grow at its first token."""
        if piece.drafted is None or piece.accepted is None:
            return None
        counts = piece.drafted - self._drafted, piece.accepted - self._accepted
        self._drafted, self._accepted = piece.drafted, piece.accepted
        return counts

    def _together(self, piece: Piece, tokens: int) -> tuple[int, int]:
        """The same where the tokens of one pass arrive together, certain only if the server counts passes."""
        if not self.tokens or self.depth == 0 or (piece.passes is not None and piece.passes == self._passes):
            return 0, 0  # the prompt's own pass, or a plain step
        self.inferred |= piece.passes is None or piece.passes > self._passes + 1
        self._passes = piece.passes or 0
        if piece.end == "length":
            return tokens - 1, tokens - 1  # cut off: how many more were drafted and accepted is not known
        self.lengths_known &= self.depth is not None
        return max(self.depth or 0, tokens - 1), tokens - 1

    def _close(self) -> ServerRound:
        round_ = ServerRound(*self._counts, tuple(self._ids), tuple(self._pieces))
        self._ids, self._pieces, self._counts = [], [], (0, 0)
        return round_


def run_of(rounds: Sequence[Round], ask: Ask, engine: str, drafter: str | None, end: End | None) -> Run:
    """A server's rounds as a run: see `specviz.foreign.rounds.show`. end: None if the answer was stopped."""
    greedy = ask.temperature == 0
    empty = show([], [], [], greedy=greedy, engine=engine, drafter=drafter or "none", schema=SCHEMA)
    ids = tuple(id for round_ in rounds for id in round_.known_ids)
    vocabulary = {id: text for round_ in rounds for id, text in zip(round_.emitted, round_.pieces) if id is not None}
    return replace(
        empty,
        num_draft_tokens=max((len(round_.drafted) for round_ in rounds), default=0),
        sampling=replace(empty.sampling, temperature=ask.temperature),
        max_new_tokens=ask.max_new_tokens,
        prompt=Prompt(*(("", ask.prompt) if isinstance(ask.prompt, tuple) else (ask.prompt, ()))),
        rounds=tuple(rounds),
        stop_reason="stopped" if end is None else _REASONS.get(end, "stopped"),
        text="".join(piece for round_ in rounds for piece in round_.pieces),
        token_ids=ids,
        vocabulary=vocabulary,
    )
