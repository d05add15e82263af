"""Prompts: the presets that come with the program (assets/presets.json), chosen for the embedded pair, and those of
a file, a text a line or JSON."""

import json
import operator
import pathlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from specviz.records.assets import ASSETS
from specviz.records.errors import SpecvizError, quoted
from specviz.records.files import decoded
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

#: The page's seed at the start: that of the recorded run with which it opens, so that pressing makes that run again.
SEED = 885

_FILE = json.loads((ASSETS / "presets.json").read_text(encoding="utf-8"))

#: For models that continue a text; the file says what each one shows.
PRESETS = tuple(Preset(preset["name"], preset["prompt"]) for preset in _FILE["continued"])

#: For models that answer.
CHAT_PRESETS = tuple(Preset(preset["name"], preset["prompt"], chat=True) for preset in _FILE["answered"])

#: The presets that are prose; speed over "the stories" is measured on these.
STORIES = tuple(preset for preset in PRESETS if preset.name.startswith("story"))


#: No context holds this many characters; tokenising more would only keep others waiting.
MOST_CHARACTERS = 4_000_000


def require_readable(prompt: str) -> None:
    """Raises SpecvizError (field ``prompt``) for a text that nothing could continue: empty, endless, or with half of a
    character in it."""
    if not prompt:
        raise SpecvizError("Write a prompt first: there is nothing to continue.", "prompt")
    if len(prompt) > MOST_CHARACTERS:
        raise SpecvizError(
            "The prompt has {count:,} characters, but at most {most:,} can be read.",
            "prompt",
            count=len(prompt),
            most=MOST_CHARACTERS,
        )
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SpecvizError(
            "Character {place} of the prompt is half of a surrogate pair, not a whole character: remove it or "
            "paste the text again.",
            "prompt",
            place=error.start + 1,
        ) from error


def token_ids(prompt: object) -> tuple[int, ...]:
    """A prompt that is no text as token ids: a list, a tuple or a 1-D array or tensor of whole numbers from 0 up.

    Raises SpecvizError (field ``prompt``) for anything else.
    """
    ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Sequence):
        raise SpecvizError(
            "A prompt is a text or a list of token ids, not {kind}.", "prompt", kind=type(prompt).__name__
        )
    if not ids:
        raise SpecvizError("Write a prompt first: the list of token ids is empty.", "prompt")
    for token_id in ids:
        if isinstance(token_id, bool) or not hasattr(token_id, "__index__"):
            raise SpecvizError("Token ids are whole numbers, not {value}.", "prompt", value=quoted(token_id))
    return tuple(map(operator.index, ids))


# --- prompts of a file ------------------------------------------------------------------------------------------------

Result = TypeVar("Result")

_DECODER = json.JSONDecoder()
_BEGINNING = re.compile(r"[^\s,]")

#: More would take hours to measure without saying more.
MOST_PROMPTS = 1000


def text_of(path: pathlib.Path) -> str:
    """The text of a file of prompts. Raises SpecvizError (field ``prompts``) where it cannot be read."""
    try:
        return decoded(path.read_bytes(), errors="strict")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SpecvizError("The file of prompts cannot be read: {reason}.", "prompts", reason=reason) from error
    except SpecvizError as error:
        raise error.at("prompts") from error


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
            if error.field == "grammar":  # the same for all of them
                raise
            raise SpecvizError(
                "Line {number} of the prompts: {reason}", "prompts", number=prompt.name, reason=error
            ) from error
    return results


def read_prompts(text: str) -> list[Preset]:
    """The prompts of a file, each named after the number of its line.

    Either every line is a text, or the file is JSON: objects, texts and lists of messages, one after another or in one
    array. An object has ``prompt`` (a text), ``messages`` (a list of ``{"role": …, "content": …}``) or
    ``conversations`` (ShareGPT's), and optionally ``domain``, under which results are reported. Of a conversation that
    was answered, the last answer is left out; of ShareGPT's the first question counts, as in the benchmarks of vLLM and
    SGLang. Empty lines are left out. Raises SpecvizError (field ``prompts``) naming the line, also for texts that look
    like another kind of file.
    """
    # Only these end a line: JSON may hold other separators as they are.
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip()
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise SpecvizError("The file of prompts is empty: write one prompt per line.", "prompts")
    entries = _entries(text) if _is_json(lines) else lines
    if len(entries) > MOST_PROMPTS:
        raise SpecvizError(
            "The file has {count} prompts, but at most {most} can be read.",
            "prompts",
            count=len(entries),
            most=MOST_PROMPTS,
        )
    if entries is not lines:
        return [_from_json(number, entry) for number, entry in entries]
    _check_lines(lines)
    return [Preset(str(number), line) for number, line in lines]


def _is_json(lines: Sequence[tuple[int, str]]) -> bool:
    """Whether this is JSON, a broken one too: an object, an array over several lines or in one, or a text a line."""
    first = lines[0][1].strip()
    if first.startswith("{") or re.match(r'\[\s*(?:$|[\[{"])', first):
        return True
    if isinstance(_value(first), list):
        return True
    return first.startswith('"') and all(isinstance(_value(line), str) for _, line in lines)


def _value(line: str) -> Any:
    """What the line is as JSON, or None."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _entries(text: str) -> list[tuple[int, Any]]:
    """The values of a text in JSON, with their lines; of a single array the values within."""
    values = _values(text, 0)
    if len(values) == 1 and isinstance(array := values[0][1], list) and array and not _is_conversation(array):
        return _values(text, text.index("[") + 1)
    return values


def _values(text: str, place: int) -> list[tuple[int, Any]]:
    """The values from a place on, with their lines, up to the end of their array."""
    values: list[tuple[int, Any]] = []
    number, counted = 1, 0
    while (found := _BEGINNING.search(text, place)) and found[0] != "]":
        place = found.start()
        number, counted = number + text.count("\n", counted, place), place
        try:
            value, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise SpecvizError(
                "Line {number} of the prompts is not JSON, but the file begins as JSON does: {reason}.",
                "prompts",
                number=number,
                reason=str(error),
            ) from error
        values.append((number, value))
    return values


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "role" in one for one in value)


#: What a line looks like that is no prompt, and what kind of file has such lines. The first two are looked for in the
#: first line only.
_HEADER = re.compile(
    r'"?(?:[\w ]{1,30}"?[,;\t]"?)*(?:prompts?|questions?|text|instruction|input|messages)"?(?:[,;\t].*)?'
)
_MARKUP = re.compile(r"<(?:\?xml|!doctype html)|(?:- +)?(?:prompts?|messages|role):|\w+ *= *[\[{(]$", re.IGNORECASE)
_FENCE = re.compile(r"\s*(?:```|~~~)")
_JSON_LINE = re.compile(r'\s*(?:[{\[]\s*"|"[^"]*",\s*$)')


def _check_lines(lines: Sequence[tuple[int, str]]) -> None:
    """Raises SpecvizError for lines that are no prompts: a table's header, markup, a fence, JSON among texts."""
    first, header = lines[0], _HEADER.fullmatch(lines[0][1].strip())
    found = first if (header and (len(lines) > 1 or not header[0].isalpha())) or _MARKUP.match(first[1]) else None
    found = found or next((line for line in lines if _FENCE.match(line[1]) or _JSON_LINE.match(line[1])), None)
    if found:
        raise SpecvizError(
            "Line {number} of the prompts looks like part of another file, not like a prompt: {line}. Write one prompt "
            "per line, or JSON Lines with prompt or messages.",
            "prompts",
            number=found[0],
            line=quoted(found[1]),
        )


def _from_json(number: int, entry: Any) -> Preset:
    if isinstance(entry, str):
        return Preset(str(number), entry)
    if _is_conversation(entry):
        entry = {"messages": entry}
    kinds = [key for key in ("prompt", "messages", "conversations") if isinstance(entry, dict) and key in entry]
    if len(kinds) != 1:
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
    (kind,) = kinds
    turns = _turns(entry[kind]) if kind == "conversations" else entry.get("messages")
    return Preset(str(number), prompt, domain, () if kind == "prompt" else _messages(number, turns))


#: Who speaks in ShareGPT's files.
_ROLES = {"human": "user", "user": "user", "system": "system"}


def _turns(turns: Any) -> Any:
    """ShareGPT's turns as messages, up to the first question."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return turns
    messages = [
        {"role": _ROLES.get(str(turn.get("from")), "assistant"), "content": turn.get("value")} for turn in turns
    ]
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), -1)
    return [message for message in messages[: first + 1] if message["role"] != "assistant"]


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
    answered = len(messages) > 1 and messages[-1]["role"] == "assistant"
    return tuple({key: message[key] for key in ("role", "content")} for message in messages[: -1 if answered else None])
