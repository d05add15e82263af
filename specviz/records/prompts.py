"""Prompts: the presets that come with the program (assets/presets.json), chosen for the embedded pair, and those of
a file, a text a line or JSON lines."""

import json
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from specviz.records.assets import ASSETS
from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import RunSettings

#: A turn of a conversation: its ``role`` and its ``content``.
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Preset:
    """A prompt with a name."""

    name: str
    prompt: str
    domain: str = ""  # under which results are reported, for prompts that were read from a file
    messages: tuple[Message, ...] = ()  # a conversation in the prompt's place, for the chat template
    chat: bool = False  # the prompt is a user's turn, for the chat template


#: The page's temperature at the start: as the Llama 3 models are used by default (their generation_config.json).
TEMPERATURE = 0.6

_FILE = json.loads((ASSETS / "presets.json").read_text(encoding="utf-8"))

#: For models that continue a text; the file says what each one shows.
PRESETS = tuple(Preset(preset["name"], preset["prompt"]) for preset in _FILE["continued"])

#: For models that answer.
CHAT_PRESETS = tuple(Preset(preset["name"], preset["prompt"], chat=True) for preset in _FILE["answered"])

#: The presets that are prose; speed over "the stories" is measured on these.
STORIES = tuple(preset for preset in PRESETS if preset.name.startswith("story"))


# --- prompts of a file ------------------------------------------------------------------------------------------------

Result = TypeVar("Result")

#: More would take hours to measure without saying more.
MOST_PROMPTS = 1000


def text_of(path: pathlib.Path) -> str:
    """The text of a file of prompts. Raises SpecvizError (field ``prompts``) where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SpecvizError("The file of prompts cannot be read: {reason}.", "prompts", reason=reason) from error


def on_each(
    prompts: Sequence[Preset],
    settings: RunSettings,
    conversation: Callable[[Sequence[Message]], tuple[int, ...]],
    make: Callable[[RunSettings], Result],
) -> list[Result]:
    """The results of `make` for these settings with each prompt in turn. conversation: `ModelPair.conversation`.

    Raises SpecvizError (field ``prompts``), with the line of a prompt that does not fit.
    """
    results = []
    for prompt in prompts:
        try:
            text = conversation(prompt.messages) if prompt.messages else prompt.prompt
            results.append(make(replace(settings, prompt=text, chat=settings.chat and not prompt.messages)))
        except SpecvizError as error:
            raise SpecvizError(
                "Line {number} of the prompts: {reason}", "prompts", number=prompt.name, reason=error
            ) from error
    return results


def read_prompts(text: str) -> list[Preset]:
    """The prompts of a file, each named after the number of its line.

    Either every line is a text, or every line is a JSON object with ``prompt`` (a text) or ``messages`` (a list of
    ``{"role": …, "content": …}``), and optionally ``domain``, under which results are reported. Empty lines are
    left out. Raises SpecvizError (field ``prompts``) naming the line.
    """
    # Only these end a line: JSON may hold other separators as they are.
    all_lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    lines = [(number, line) for number, line in enumerate(all_lines, start=1) if line.strip()]
    if not lines:
        raise SpecvizError("The file of prompts is empty: write one prompt per line.", "prompts")
    if len(lines) > MOST_PROMPTS:
        raise SpecvizError(
            "The file has {count} prompts, but at most {most} can be read.",
            "prompts",
            count=len(lines),
            most=MOST_PROMPTS,
        )
    as_json = lines[0][1].lstrip().startswith("{")
    return [_from_json(number, line) if as_json else Preset(str(number), line) for number, line in lines]


def _from_json(number: int, line: str) -> Preset:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SpecvizError(
            "Line {number} of the prompts is not JSON, but all lines must be if the first one begins with a "
            "brace: {reason}.",
            "prompts",
            number=number,
            reason=str(error),
        ) from error
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
        raise SpecvizError(
            "Line {number} of the prompts must be an object with either prompt or messages, not {value}.",
            "prompts",
            number=number,
            value=quoted(entry),
        )
    domain, prompt = entry.get("domain", ""), entry.get("prompt", "")
    for key, value in (("domain", domain), ("prompt", prompt)):
        if not isinstance(value, str):
            raise SpecvizError(
                "Line {number} of the prompts must have a text as its {key}, not {value}.",
                "prompts",
                number=number,
                key=key,
                value=quoted(value),
            )
    return Preset(str(number), prompt, domain, _messages(number, entry["messages"]) if "messages" in entry else ())


def _messages(number: int, messages: Any) -> tuple[Message, ...]:
    def is_message(value: Any) -> bool:
        return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))

    if not isinstance(messages, list) or not messages or not all(map(is_message, messages)):
        raise SpecvizError(
            "Line {number} of the prompts must have messages with the texts role and content, not {value}.",
            "prompts",
            number=number,
            value=quoted(messages),
        )
    return tuple({"role": message["role"], "content": message["content"]} for message in messages)
