"""The growing text, and why it ends."""

from __future__ import annotations

from specviz.decoding.request import Request
from specviz.decoding.round_record import Unrecorded
from specviz.models.token_texts import Detokenizer
from specviz.records.runs import LengthChoice, Seconds, StopReason
from specviz.rules.draft import Verdict


class Continuation:
    """A run's committed tokens and their text.

    Acceptance is decided before anything is truncated here, so truncation cannot bias a count.
    """

    def __init__(self, request: Request):
        self.settings, self.pair, self.rule = request.settings, request.pair, request.rule
        self.prompt_length = len(request.prompt.ids)
        self.committed = list(request.prompt.ids)
        self.detokenizer = Detokenizer(request.pair.texts, request.prompt.ids)
        self.tail = ""
        self.rounds = 0
        self.stop_reason: StopReason | None = None

    @property
    def new_tokens(self) -> int:
        return len(self.committed) - self.prompt_length

    @property
    def room(self) -> int:
        """How many draft tokens could be kept: the round adds one more, and nothing past the end is."""
        left = self.settings.max_new_tokens - self.new_tokens
        if self.pair.context_length is not None:
            left = min(left, self.pair.context_length - len(self.committed))
        return left - 1

    def extend(self, judged: Verdict) -> tuple[list[int], list[str]]:
        """Commits the kept draft tokens and the next one, up to the run's end; returns both tokens and texts."""
        emitted, pieces = [], []
        for token in judged.tokens:
            self.committed.append(token)
            emitted.append(token)
            pieces.append(self.detokenizer.push(token))
            self.stop_reason = self._reason_to_stop(token, pieces[-1])
            if self.stop_reason:
                pieces[-1] += self.detokenizer.flush()
                break
        return emitted, pieces

    def _reason_to_stop(self, token: int, piece: str) -> StopReason | None:
        if token in self.pair.eos_ids:
            return "eos"
        if self.settings.stop:
            window = max(map(len, self.settings.stop)) - 1
            text = self.tail + piece
            # Bytes are held back that may be whole characters already: a line's end is one in some vocabularies.
            if any(stop in text + self.detokenizer.held for stop in self.settings.stop):
                return "stop_string"
            self.tail = text[-window:] if window else ""
        if self.new_tokens >= self.settings.max_new_tokens:
            return "length"
        if self.pair.context_length is not None and len(self.committed) >= self.pair.context_length:
            return "context"
        return None

    def round(
        self, judged: Verdict, choice: LengthChoice, emitted: list[int], pieces: list[str], seconds: Seconds
    ) -> Unrecorded:
        """The round just committed."""
        self.rounds += 1
        return Unrecorded(
            judged,
            self.pair.texts,
            self.rule,
            index=self.rounds - 1,
            emitted=tuple(emitted),
            pieces=tuple(pieces),
            seconds=seconds,
            stop_reason=self.stop_reason,
            choice=None if choice.speed is None else choice,
        )
