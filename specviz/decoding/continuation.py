"""A run's text as it grows, and where it ends."""

from collections.abc import Sequence

from specviz.decoding.request import Request
from specviz.models.token_texts import Detokenizer
from specviz.records.runs import StopReason


class Continuation:
    """A run's committed tokens and their text.

    Acceptance is decided before anything is truncated here, so truncation cannot bias a count.
    """

    def __init__(self, request: Request):
        self.settings, self.pair, self.grammar = request.settings, request.pair, request.grammar
        self.prompt_length = len(request.prompt.ids)
        self.committed = list(request.prompt.ids)
        self.detokenizer = Detokenizer(request.pair.texts, request.prompt.ids)
        self.tail = ""
        self.stop_reason: StopReason | None = None

    @property
    def tokens_left(self) -> int:
        """How many tokens can still be added."""
        tokens_left = self.settings.max_new_tokens + self.prompt_length - len(self.committed)
        if self.pair.context_length is not None:
            tokens_left = min(tokens_left, self.pair.context_length - len(self.committed))
        return tokens_left

    @property
    def room(self) -> int:
        """How many draft tokens could be accepted: the round adds one more, and nothing goes past the end."""
        return self.tokens_left - 1

    def extend(self, tokens: Sequence[int]) -> tuple[list[int], list[str]]:
        """Commits a round's tokens, up to the run's end; returns those committed and their texts."""
        emitted, pieces = [], []
        for token in tokens:
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
            if any(stop in text + self.detokenizer.held_text for stop in self.settings.stop):
                return "stop_string"
            self.tail = text[-window:] if window else ""
        if len(self.committed) - self.prompt_length >= self.settings.max_new_tokens:
            return "length"
        if self.grammar and not self.grammar.allowed(self.grammar.text_of(self.committed)).any():
            return "grammar"
        return "context" if self.tokens_left <= 0 else None
