"""What a run is asked for: one frozen value, shared by engine, links, page, API and command line."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from specviz.records.coins import read_coins
from specviz.records.errors import SpecvizError, quoted

#: The lowest temperature above greedy: dividing by less turns logits into infinities.
MIN_TEMPERATURE = 0.01

#: The widest tree: more siblings are never worth their place in the target pass.
MAX_BRANCHES = 8

#: The bits of a weight that a drafter may have.
BITS = (8, 4)

#: The name of plain decoding where a drafter is expected: in forms, links and on the command line.
PLAIN = "plain"

#: Longer drafts never pay; they only fill memory.
MAX_DRAFT_TOKENS = 64

#: The γ that is chosen anew in every round (`specviz.theory.draft_length`), and the most it then is.
AUTO: Literal["auto"] = "auto"
LONGEST_AUTO = 16

#: The page's numbers, JavaScript's, are exact up to here; so any seed can be shown, linked to and typed in again.
MAX_SEED = 2**53 - 1


def is_whole(value: object) -> bool:
    """Whether `value` is an int; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: object, most: float = math.inf) -> bool:
    """Whether `value` is a whole number from 1 to `most`."""
    return is_whole(value) and 1 <= value <= most


def _require_finite(name: str, value: float) -> None:
    # Not `isfinite`, which fails for whole numbers that no float can hold.
    if not (is_whole(value) or isinstance(value, float)) or not abs(value) <= sys.float_info.max:
        raise SpecvizError("{name} must be an ordinary number, not {value}.", name, name=name, value=quoted(value))


def _require_text(name: str, value: str) -> None:
    if not isinstance(value, str):
        raise SpecvizError("{name} must be a name, not {value}.", name, name=name, value=quoted(value))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How logits become a distribution; the same for target and drafter.

    Raises SpecvizError, with `field` set, for values out of range.
    """

    temperature: float = 1.0  # 0 is greedy; otherwise logits are divided by it, at least 0.01
    top_k: int = 0  # keep the k likeliest tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest set of likeliest tokens with at least this mass, in (0, 1]; 1 keeps all
    min_p: float = 0.0  # keep tokens at least this fraction as likely as the likeliest, in [0, 1]; 0 keeps all

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p", "min_p"):
            _require_finite(name, getattr(self, name))
        if self.temperature < 0:
            raise SpecvizError("Temperature cannot be negative; 0 is greedy decoding.", "temperature")
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise SpecvizError(
                "A temperature of {temperature} is too small to divide by: use 0 for greedy decoding, or at least "
                "{least}.",
                "temperature",
                temperature=self.temperature,
                least=MIN_TEMPERATURE,
            )
        if self.top_k < 0 or int(self.top_k) != self.top_k:
            raise SpecvizError("Top-k must be a whole number, 0 (off) or more.", "top_k")
        if not 0 < self.top_p <= 1:
            raise SpecvizError("Top-p must be above 0 and at most 1 (1 is off).", "top_p")
        if not 0 <= self.min_p <= 1:
            raise SpecvizError("Min-p must be between 0 (off) and 1.", "min_p")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class DraftParams:
    """How to draft, apart from how much; each drafter reads what concerns it.

    Raises SpecvizError, with `field` set, for values out of range.
    """

    branches: int | None = None  # draft tokens at each depth, 1 (a chain) to 8; None is the drafter's default
    confidence: float = 0.0  # stop once the drafter's probability for its last token falls below this; 0: never
    exit_layer: int | None = None  # layers after which `early_exit` leaves the target; None: about a quarter of them
    bits: int | None = None  # of the weights with which `quantised_self` drafts, 8 or 4; None: 8

    def __post_init__(self) -> None:
        if self.branches is not None and not is_count(self.branches, MAX_BRANCHES):
            raise SpecvizError(
                "Branches must be a whole number from 1 to {most}, not {value}.",
                "branches",
                most=MAX_BRANCHES,
                value=quoted(self.branches),
            )
        if self.exit_layer is not None and not is_count(self.exit_layer):
            raise SpecvizError(
                "The exit layer must be a whole number from 1, not {value}.",
                "exit_layer",
                value=quoted(self.exit_layer),
            )
        if self.bits is not None and not (is_whole(self.bits) and self.bits in BITS):
            raise SpecvizError("Bits must be 8 or 4, not {value}.", "bits", value=quoted(self.bits))
        _require_finite("confidence", self.confidence)
        if not 0 <= self.confidence < 1:
            raise SpecvizError("The confidence to stop at must be at least 0 (off) and below 1.", "confidence")


def check_gamma(num_draft_tokens: int | str) -> None:
    """Checks γ. Raises SpecvizError (field ``num_draft_tokens``)."""
    if num_draft_tokens == AUTO:
        return
    if not is_count(num_draft_tokens):
        raise SpecvizError(
            "Ask for at least one draft token a round (drafter=None is plain), as a whole number, or for auto; got "
            "{value}.",
            "num_draft_tokens",
            value=quoted(num_draft_tokens),
        )
    if num_draft_tokens > MAX_DRAFT_TOKENS:
        raise SpecvizError(
            "{value} draft tokens a round are too many: at most {most}.",
            "num_draft_tokens",
            value=quoted(num_draft_tokens),
            most=MAX_DRAFT_TOKENS,
        )


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything a run is asked for except the pair, checked as far as possible without one.

    Forms, links and the command line use flat names, with the fields of `sampling` and `drafting` among the others:
    see `of`, `flat` and `KINDS`. Raises SpecvizError, with `field` set, for values out of range.
    """

    prompt: str | Sequence[int]  # text, or token ids
    drafter: str | None = "draft_model"  # a name from `specviz.DRAFTERS`; None is plain decoding
    num_draft_tokens: int | Literal["auto"] = 4  # γ: draft depth of a round; ignored in plain decoding
    sampling: SamplingParams = SamplingParams()
    max_new_tokens: int = 128
    seed: int = 0  # seeds every coin, 0 to 2^53 − 1
    stop: Sequence[str] = ()  # texts that end the run
    chat: bool = False  # wrap the prompt in the tokenizer's chat template
    drafting: DraftParams = DraftParams()
    rule: str = "auto"  # a name from `specviz.RULES`, or auto: see `usual_rule`
    coins: str = ""  # coins set by hand, the others follow from the seed: see `specviz.records.coins`

    def __post_init__(self) -> None:
        if not is_count(self.max_new_tokens):
            raise SpecvizError(
                "Ask for at least one new token, as a whole number; got {value}.",
                "max_new_tokens",
                value=quoted(self.max_new_tokens),
            )
        if self.drafter is not None:
            _require_text("drafter", self.drafter)
            check_gamma(self.num_draft_tokens)
        _require_text("rule", self.rule)
        if not (is_whole(self.seed) and 0 <= self.seed <= MAX_SEED):
            raise SpecvizError("The seed must be a whole number from 0 to 2^53 − 1.", "seed")
        if read_coins(self.coins) and self.sampling.greedy:
            raise SpecvizError("At temperature 0 no coin is flipped: set none by hand.", "coins")
        if not isinstance(self.chat, bool):
            raise SpecvizError(
                "{name} must be true or false, not {value}.", "chat", name="chat", value=quoted(self.chat)
            )
        texts = isinstance(self.stop, Sequence) and not isinstance(self.stop, (str, bytes))
        if not texts or not all(isinstance(text, str) and text for text in self.stop):
            raise SpecvizError("Stop strings must be a list of non-empty texts.", "stop")

    @property
    def deepest_draft(self) -> int:
        """The most levels that a round may draft; 0 in plain decoding."""
        if self.drafter is None:
            return 0
        return LONGEST_AUTO if self.num_draft_tokens == AUTO else self.num_draft_tokens

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> RunSettings:
        """Builds settings from values by flat name; missing ones take their defaults, unknown names are ignored."""
        own, sampling, drafting = (
            {name: values[name] for name in names if name in values} for names in (_OWN, _SAMPLING, _DRAFTING)
        )
        if own.get("drafter") == PLAIN:
            own["drafter"] = None
        return cls(**own, sampling=SamplingParams(**sampling), drafting=DraftParams(**drafting))

    def flat(self) -> dict[str, Any]:
        """The values by flat name: the inverse of `of`."""
        own = {name: getattr(self, name) for name in _OWN} | {"drafter": self.drafter or PLAIN}
        return own | asdict(self.sampling) | asdict(self.drafting)


_SAMPLING, _DRAFTING = ([one.name for one in fields(kind)] for kind in (SamplingParams, DraftParams))
_OWN = [one.name for one in fields(RunSettings) if one.name not in ("sampling", "drafting")]


def _kinds() -> dict[str, type]:
    hints = {name: hint for kind in (RunSettings, SamplingParams, DraftParams) for name, hint in _hints(kind)}
    return {name: hints[name] for name in (*_OWN, *_SAMPLING, *_DRAFTING) if name != "stop"}


def is_auto(name: str, value: object) -> bool:
    """Whether a setting that is otherwise a number is left to be chosen in each round."""
    return name == "num_draft_tokens" and value == AUTO


def _hints(kind: type) -> list[tuple[str, type]]:
    """Field names and types; of a union the first, the one that fits on a line of text."""
    return [(name, next(iter(get_args(hint)), hint)) for name, hint in get_type_hints(kind).items()]


#: The type of each setting that a form, link or API call can give, by flat name (stop strings are a list).
KINDS: dict[str, type] = _kinds()


def usual_rule(makes_trees: bool) -> str:
    """The rule that ``auto`` stands for: token by token for chains, sibling by sibling for trees."""
    return "tree" if makes_trees else "token"
