"""The page's texts by language, a JSON file for each area: AREA.LANGUAGE.json next to its element in assets/web;
assets/text/LANGUAGE holds the texts that several elements share.

A text is a sentence with a ``{name}``, or ``{name:.2f}`` for a number in a format of Python, for each value or, if it
counts something, an object with the sentences for ``one`` and for ``other`` values of ``n``. The page's scripts read
the same texts by the same keys (assets/web/shared/words.js): messages to the page carry `said` keys and values.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from specviz.records.assets import ASSETS, WEB
from specviz.records.rules import RULES

TEXTS = ASSETS / "text"

#: The languages of the page, the first one at its root, and their own names.
LANGUAGES = {"en": "English", "de": "Deutsch"}

#: The areas whose keys are English templates. Python fills these in; the page's scripts never say them.
TEMPLATES = ("errors", "steps")

Text = str | dict[str, str]

#: The space between a number, or the value that stands for one, and its unit.
_BEFORE_UNIT = re.compile(r"(?<=[\d}]) (?=(?:[nmµ]?s|min|h|[kMGT]i?B|%|[MB])(?![\w]))")

#: A text for the page to say in its language, ready for JSON: one that is shown as it is, a key with its values (which
#: may be such texts themselves), or several in a row.
Said = str | dict[str, Any]


def said(key: str, **values: Any) -> Said:
    return {"say": key} | values


def joined(parts: Iterable[Said], by: str = " · ") -> Said:
    return {"join": by, "parts": list(parts)}


class Translatable:
    """English text that remembers its template and values, so that a page can say it in another language."""

    template: str
    values: dict[str, object]


class Sentence(Translatable, str):
    """Such a text that is a string."""

    def __new__(cls, template: str, **values: object) -> Sentence:
        sentence = super().__new__(cls, fill(template, values))
        sentence.template, sentence.values = template, values
        return sentence


class Words:
    """The page's texts in one language, called with a key, ``area.name``, and the text's values.

    Raises KeyError for a key that no file has: a missing text is a bug of the page, not a mistake of its reader.
    """

    def __init__(self, language: str, areas: Mapping[str, Mapping[str, Text]]):
        self.language = language
        self.areas = areas

    def __call__(self, key: str, **values: object) -> str:
        area, _, name = key.partition(".")
        text = self.areas[area][name]
        if isinstance(text, dict):
            text = text["one" if values["n"] == 1 else "other"]
        return self._filled(text, {name: self.translated(value) for name, value in values.items()})

    def translated(self, message: Any) -> Any:
        """A message with the texts in the place of all that is `said` in it, as the page's scripts make it."""
        if isinstance(message, dict):
            if "say" in message:
                return self(message["say"], **{name: value for name, value in message.items() if name != "say"})
            fields = {name: self.translated(value) for name, value in message.items()}
            return fields["join"].join(fields["parts"]) if "join" in fields else fields
        return [self.translated(value) for value in message] if isinstance(message, (list, tuple)) else message

    def number(self, value: float, spec: str) -> str:
        """`value` by a format specification of Python, with this language's decimal sign and a minus sign."""
        return _signed(format(value, spec).replace(".", str(self.areas["common"]["decimal"])))

    def __contains__(self, key: str) -> bool:
        area, _, name = key.partition(".")
        return name in self.areas.get(area, ())

    def reason(self, text: Translatable) -> str:
        """A SpecvizError, a step or an observation, and those that it quotes; in English if this language lacks it."""
        values = {
            name: self.reason(value) if isinstance(value, Translatable) else value
            for name, value in text.values.items()
        }
        texts = self.areas["errors" if isinstance(text, Exception) else "steps"]
        return self._filled(with_units(str(texts.get(text.template, text.template))), values)

    error = step = reason

    def texts(self, *areas: str) -> dict[str, Text]:
        """All texts of these areas by their keys, for the page's scripts."""
        return {f"{area}.{name}": text for area in areas for name, text in self.areas[area].items()}

    def for_page(self) -> dict[str, Text]:
        """All texts that the page's scripts may say."""
        return self.texts(*sorted(self.areas.keys() - set(TEMPLATES)))

    def texts_in(self, *sources: str) -> dict[str, Text]:
        """The texts of those areas of which these scripts, or messages as JSON, hold a key."""
        areas = {area for source in sources for area in re.findall(r'["`](\w+)\.', source)}
        return {key: text for key, text in self.for_page().items() if key.partition(".")[0] in areas}

    def _filled(self, template: str, values: Mapping[str, object]) -> str:
        decimal = str(self.areas["common"]["decimal"]) if "common" in self.areas else "."
        sizes = {name: each for name, each in values.items() if isinstance(each, Bytes)}
        written = {name: with_units(str(size)).replace(".", decimal) for name, size in sizes.items()}
        return fill(template, {**values, **written}, decimal)


@functools.cache
def words(language: str = "en") -> Words:
    """The texts in one of `LANGUAGES`; where a rule has none in it, its English ones."""
    areas = texts_of(language)
    areas["ways"] = dict(_of_rules()) | areas["ways"]
    return Words(language, areas)


def texts_of(language: str) -> dict[str, dict[str, Text]]:
    """The texts of the files in this language, by area, in which a number and its unit stay on one line."""
    files = [*(TEXTS / language).glob("*.json"), *WEB.glob(f"*/*.{language}.json")]
    read = {file.name.split(".")[0]: json.loads(file.read_text(encoding="utf-8")) for file in files}
    return {area: {key: _unbroken(text) for key, text in texts.items()} for area, texts in read.items()}


def _unbroken(text: Any) -> Any:
    if isinstance(text, dict):
        return {form: _unbroken(sentence) for form, sentence in text.items()}
    return with_units(text)


def with_units(text: str) -> str:
    """A text, or a template, in which no line ends between a number and its unit."""
    return _BEFORE_UNIT.sub("\u00a0", text)


def _of_rules() -> Iterator[tuple[str, Text]]:
    """The English texts of the acceptance rules, which stand in their rows."""
    for name, facts in RULES.items():
        yield f"rule_{name}", facts.title
        yield f"rule_{name}_about", facts.about


def fill(template: str, values: Mapping[str, object], decimal: str = ".") -> str:
    """The template with every known ``{name}`` replaced; other braces, and braces in values, stay as they are.

    decimal: the decimal sign. Numbers have a minus sign for the hyphen; thousands are grouped by a narrow space, which
    no language reads as a decimal sign.
    """

    def written(match: re.Match[str]) -> str:
        name, spec = match[1], match[2] or ""
        if name not in values:
            return match[0]
        value = values[name]
        text = format(value, spec) if spec else str(value)
        if "," in spec:
            return text.replace(",", "\u202f")
        return _signed(text.replace(".", decimal)) if spec or isinstance(value, (int, float)) else text

    return re.sub(r"\{(\w+)(?::([^{}]+))?\}", written, template)


def _signed(number: str) -> str:
    return number.replace("-", "−")


class Bytes(float):
    """A number of bytes, for people: ``"31 MB"``, ``"2.5 GB"``, ``"16 GB"`` (powers of ten, as on model cards)."""

    def __str__(self) -> str:
        if self < 1e9:
            return f"{max(self, 0) / 1e6:.0f} MB"
        return f"{self / 1e9:.1f} GB" if self < 9.95e9 else f"{self / 1e9:.0f} GB"
