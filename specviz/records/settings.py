"""The settings of a run in one table: the fields of `RunSettings`, `SamplingParams` and `DraftParams`.

Each field states its purpose and its bounds. The command line's options, the API's parameters, links and the page's
controls are made from `SETTINGS`. A drafter's class names the fields of `DraftParams` that it reads
(`Drafter.parameters`).
"""

from __future__ import annotations

import numbers
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeGuard

from specviz.records.errors import SpecvizError, quoted, require_made_by
from specviz.records.rules import RULES

#: The name of plain decoding where a drafter is expected: in forms, links and on the command line.
PLAIN = "plain"

#: The bits of a weight that a drafter may have. By default the first: less time counts more than a better draft.
BITS = (4, 8)

#: A pair's passes: the models' own; compiled ones, if any were compiled before; compiled now where they were not.
PASSES = ("plain", "cached", "auto")

#: The γ that is chosen anew in every round (`specviz.theory.draft_length`), and the most it then is.
AUTO: Literal["auto"] = "auto"
LONGEST_AUTO = 16

#: The page's numbers, JavaScript's, are exact up to here; so any seed can be shown, linked to and typed in again.
MAX_SEED = 2**53 - 1


def is_whole(value: object) -> TypeGuard[int]:
    """True if `value` is an int; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """True if `value` is an int or a float; True and False are not."""
    return is_whole(value) or isinstance(value, float)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table: the values allowed, and a line on their purpose."""

    about: str
    default: Any  # None: the drafter, or the pair, has one of its own
    kind: type  # bool, int, float or str: what a form, link or API call can give
    least: float | None = None
    most: float | None = None
    above: float | None = None  # bounds that are themselves excluded
    below: float | None = None
    choices: tuple[Any, ...] = ()  # what else is allowed; without bounds, nothing else is
    step: float = 1  # between the values of a control
    rare: bool = False  # rarely changed: it comes after its siblings, on the page below the fold
    error: str = ""  # the sentence for any other value, with {value} and the bounds; empty: see `sentence`

    def check(self, name: str, value: object) -> None:
        """Raises SpecvizError, with `field` set to the setting's name, for a value that is not allowed."""
        if value is None and self.default is not None and self.kind in (int, float):
            raise SpecvizError("Enter a number.", name)  # an emptied field
        if not self.allows(value):
            shown = value if isinstance(value, float) else quoted(value)
            bounds = {"least": self.least, "most": self.most, "choices": ", ".join(map(str, self.choices))}
            raise SpecvizError(self.sentence, name, name=name, value=shown, **bounds)

    def allows(self, value: object) -> bool:
        if (value is None and self.default is None) or self._is_choice(value):
            return True
        if self.kind in (bool, str):
            return isinstance(value, self.kind)
        if not (is_whole(value) or (self.kind is float and isinstance(value, float))) or self._only_choices:
            return False
        # Not `isfinite`, which fails for whole numbers that no float can hold.
        finite = abs(value) <= sys.float_info.max
        at_least = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        at_most = (self.most is None or value <= self.most) and (self.below is None or value < self.below)
        return finite and at_least and at_most

    def _is_choice(self, value: object) -> bool:
        numbers = not isinstance(value, bool)
        return numbers and any(isinstance(value, type(choice)) and value == choice for choice in self.choices)

    @property
    def _only_choices(self) -> bool:
        return bool(self.choices) and self.least is None

    @property
    def sentence(self) -> str:
        """The error of a value that is not allowed, as a template."""
        if self.error:
            return self.error
        if self.kind is bool:
            return "{name} must be true or false, not {value}."
        if self.kind is str:
            return "{name} must be a name, not {value}."
        if self._only_choices:
            return "{name} must be one of {choices}, not {value}."
        if self.most is None:
            return "{name} must be a whole number, {least} or more, not {value}."
        return "{name} must be a whole number from {least} to {most}, not {value}."


def setting(default: Any, about: str, kind: type | None = None, **limits: Any) -> Any:
    """A field with a row in the table. kind: of its values, if the default is None; limits: see `Setting`."""
    return field(default=default, metadata={"setting": Setting(about, default, kind or type(default), **limits)})


def check_settings(settings: Any, ignored: Sequence[str] = ()) -> None:
    """Checks every field that has a row, and makes other libraries' numbers Python's: a loop over an array gives
    NumPy's, which no file takes. Raises SpecvizError."""
    for row in fields(settings):
        if "setting" in row.metadata and row.name not in ignored:
            value = getattr(settings, row.name)
            if isinstance(value, numbers.Real) and type(value).__module__ != "builtins":
                value = int(value) if isinstance(value, numbers.Integral) else float(value)
                object.__setattr__(settings, row.name, value)
            row.metadata["setting"].check(row.name, value)


_RULES_IN_HELP = ", ".join(name if facts.lossless else f"{name} (lossy)" for name, facts in RULES.items())


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How logits become a distribution; the same for target and drafter.

    Raises SpecvizError, with `field` set, for values out of range.
    """

    #: Logits are divided by it; by less than 0.01 they would become infinite.
    temperature: float = setting(
        1.0,
        "0 is greedy",
        choices=(0, 0.0),  # an int too
        least=0.01,
        step=0.05,
        error="Temperature must be 0 (greedy decoding) or a finite number from {least} up, not {value}.",
    )
    top_k: int = setting(
        0,
        "draw only from this many of the most likely tokens; 0 is off",
        least=0,
        error="Top-k must be a whole number, 0 (off) or more, not {value}.",
    )
    top_p: float = setting(
        1.0,
        "draw only from the most likely tokens with this total probability; 1 is off",
        above=0,
        most=1,
        step=0.05,
        error="Top-p must be above 0 and at most 1 (1 is off), not {value}.",
    )
    min_p: float = setting(
        0.0,
        "draw only from tokens at least this fraction as likely as the most likely one; 0 is off",
        least=0,
        most=1,
        step=0.01,
        error="Min-p must be between {least} (off) and {most}, not {value}.",
    )

    def __post_init__(self) -> None:
        top_k: float = self.top_k
        if isinstance(top_k, float) and top_k.is_integer():
            object.__setattr__(self, "top_k", int(top_k))  # as other programs' JSON may have it
        check_settings(self)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class DraftParams:
    """How to draft, apart from how much; each drafter reads those that it names (`Drafter.parameters`).

    Raises SpecvizError, with `field` set, for values out of range.
    """

    #: More siblings than 8 are never worth their place in the target pass. None is the drafter's default.
    branches: int | None = setting(
        None,
        "draft tokens at each depth, 1 to 8: 1 makes a chain, more make a tree, which pays if wide passes are fast",
        int,
        least=1,
        most=8,
    )
    confidence: float = setting(
        0.0,
        "stop drafting below this probability; 0 is off",
        least=0,
        below=1,
        step=0.05,
        rare=True,
        error="The confidence at which drafting stops must be at least 0 (off) and below 1, not {value}.",
    )
    exit_layer: int | None = setting(
        None,
        "early_exit: leave the target after this many layers; by default about a quarter of them",
        int,
        least=1,
    )
    bits: int | None = setting(None, "quantised_self: 4 or 8 bits per weight; by default 4", int, choices=BITS)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything a run is asked for except the pair, checked as far as possible without one.

    Forms, links and the command line use flat names, with the fields of `sampling` and `drafting` among the others:
    see `of`, `flat` and `SETTINGS`. Raises SpecvizError, with `field` set, for values out of range.
    """

    prompt: str | Sequence[int]  # text, or token ids
    drafter: str | None = setting("draft_model", "a drafter's name, or plain for none")  # None is plain decoding
    #: γ: the depth of a round's draft; ignored in plain decoding. Longer drafts than 64 only fill memory.
    num_draft_tokens: int | Literal["auto"] = setting(
        4,
        "γ, draft tokens per round; auto chooses γ in each round",
        least=1,
        most=64,
        choices=(AUTO,),
        error="Ask for 1 to {most} draft tokens a round, as a whole number, or for auto (drafter=None is plain "
        "decoding); got {value}.",
    )
    sampling: SamplingParams = SamplingParams()
    max_new_tokens: int = setting(
        128,
        "the most tokens to write",
        least=1,
        error="Ask for at least one new token, as a whole number; got {value}.",
    )
    seed: int = setting(
        0, "the seed of all coins", least=0, most=MAX_SEED, error="The seed must be a whole number from 0 to 2^53 − 1."
    )
    stop: Sequence[str] = ()  # texts that end the run: neither a form nor a link gives any
    chat: bool = setting(False, "wrap the prompt in the tokenizer's chat template")
    drafting: DraftParams = DraftParams()
    #: ``auto``: see `usual_rule`.
    rule: str = setting("auto", f"how to judge drafts: auto, {_RULES_IN_HELP}")
    coins: str = setting("", "coins that you set, such as '3.2=0.41 5.next=0.07'; the others follow from the seed")
    grammar: str = setting(
        "",
        "what the new text must follow: a JSON schema, /a regular expression/, or rules in GBNF or Lark",
        error="A grammar must be a text, not {value}.",
    )

    def __post_init__(self) -> None:
        for name, kind in _PARTS.items():
            require_made_by(kind.__name__, kind, name, getattr(self, name))
        # Coins have a form of their own: see `read_coins`.
        check_settings(self, ignored=("coins", *(("drafter", "num_draft_tokens") if self.drafter is None else ())))
        if read_coins(self.coins) and self.sampling.greedy:
            raise SpecvizError("At temperature 0 no coin is flipped, so you cannot set one by hand.", "coins")
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
        run_values, sampling, drafting = (
            {row.name: values[row.name] for row in fields(kind) if row.name in values and row.name not in _PARTS}
            for kind in (cls, SamplingParams, DraftParams)
        )
        if run_values.get("drafter") == PLAIN:
            run_values["drafter"] = None
        return cls(**run_values, sampling=SamplingParams(**sampling), drafting=DraftParams(**drafting))

    def flat(self) -> dict[str, Any]:
        """The values by flat name: the inverse of `of`."""
        run_values = {row.name: getattr(self, row.name) for row in fields(self) if row.name not in _PARTS}
        return run_values | {"drafter": self.drafter or PLAIN} | asdict(self.sampling) | asdict(self.drafting)


#: The fields of `RunSettings` that hold settings of their own.
_PARTS = {"sampling": SamplingParams, "drafting": DraftParams}


def _rows(kind: type) -> Iterator[tuple[str, Setting]]:
    """The rows of a class and of its parts, in the order of its fields."""
    for row in sorted(fields(kind), key=lambda row: "setting" in row.metadata and row.metadata["setting"].rare):
        if row.name in _PARTS:
            yield from _rows(_PARTS[row.name])
        elif "setting" in row.metadata:
            yield row.name, row.metadata["setting"]


#: The table, by flat name. Stop strings are not in it: a list fits neither a form nor a link.
SETTINGS: dict[str, Setting] = {"prompt": Setting("the text to continue", "", str), **dict(_rows(RunSettings))}

#: The names in it that some drafters do not read.
DRAFTING: tuple[str, ...] = tuple(name for name, _ in _rows(DraftParams))


# Coins set by hand: a run repeated with everything as it was, but for some of its uniforms. Written ``ROUND.TOKEN=U``,
# several with spaces between them; rounds and tokens count from 1, as on the page. The coin that judges the second
# draft token of round 3 is ``3.2=0.41``, the draw of the token that ends round 5 ``5.next=0.07``.

_COIN = re.compile(r"([1-9]\d{0,6})\.(next|[1-9]\d{0,3})=(\d*\.?\d+(?:[eE]-?\d{1,3})?)")

#: More than people set by hand; a link could bring any number.
_MOST_COINS = 64

#: Everything below this stays below 1 as a float32.
_BELOW_ONE = 1 - 2**-25


@dataclass(frozen=True, slots=True)
class SetCoin:
    """One uniform and its value."""

    round: int  # counted from 0
    token: int | None  # the draft token that the coin judges, counted from 0; None: the draw of the round's own token
    u: float  # in [0, 1)


def read_coins(text: str) -> tuple[SetCoin, ...]:
    """The coins that `text` sets. Raises SpecvizError (field ``coins``) for a text in another form."""
    words = text.split() if isinstance(text, str) else [text]
    if len(words) > _MOST_COINS:
        raise SpecvizError("You can set at most {most} coins by hand.", "coins", most=_MOST_COINS)
    coins = tuple(map(_read_coin, words))
    places = [word.partition("=")[0] for word in words]
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise SpecvizError("Coin {coin} is set twice: remove one of the two.", "coins", coin=twice)
    return coins


def _read_coin(word: str) -> SetCoin:
    match = _COIN.fullmatch(word) if isinstance(word, str) else None
    # A coin is a float32, and the nearest one to 0.99999999 is 1.
    if match is None or not float(match[3]) < _BELOW_ONE:
        raise SpecvizError(
            "Set a coin as ROUND.TOKEN=U, with U from 0 to below 1, such as 3.2=0.41 or 5.next=0.07; got {value}.",
            "coins",
            value=quoted(word),
        )
    return SetCoin(int(match[1]) - 1, None if match[2] == "next" else int(match[2]) - 1, float(match[3]))
