"""What an engine wrote, out of a file that may hold more: a whole answer in JSON, an editor's line end, the prompt."""

import json
from typing import Any

from specviz.records.errors import SpecvizError, quoted

#: Where answers have their text, by what tells that the object is an answer: llama.cpp, SGLang, Ollama, specviz.
_TEXTS = {"tokens_predicted": "content", "meta_info": "text", "done": "response", "rounds": "text"}


def written(text: str, prompt: str = "") -> tuple[list[int] | str, list[str]]:
    """The text after the prompt, or token ids where a file has those; and what was left out of it, in words.

    text: a file's. Token ids are a JSON list. Raises SpecvizError for several answers at once, for a stream, and for an
    object that is an answer without a text.
    """
    left_out: list[str] = []
    value = _json(text)
    if isinstance(value, list) and value and all(type(id_) is int for id_ in value):
        return value, left_out
    if (found := _answered(value)) is not None:
        left_out.append("everything but the text of the answer in JSON")
        text = found
    elif text.startswith("data:") or _several(text, value):
        raise SpecvizError(
            "This is a stream or several answers in JSON, not one text: {text}. Give the text alone.",
            text=quoted(text),
        )
    else:
        if "\r\n" in text and "\n" not in text.replace("\r\n", ""):
            left_out.append("the \\r of its line ends")
            text = text.replace("\r\n", "\n")
        if text.endswith("\n"):
            left_out.append("its last line end")
            text = text.removesuffix("\n")
    if prompt and text.startswith(prompt):
        left_out.append("the prompt in front")
        text = text.removeprefix(prompt)
    return text, left_out


def _json(text: str) -> Any:
    """The value, or None for a text that is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _answered(value: Any) -> str | None:
    """The text of an answer; None for what is no answer: a model may well write JSON."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        message = choices[0].get("message")
        text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
    else:
        text = next((value.get(name) for mark, name in _TEXTS.items() if mark in value), None)
    if text is None and not _is_answer(value):
        return None
    if not isinstance(text, str):
        raise SpecvizError("The answer in JSON has no single text: {value}.", value=quoted(value))
    return text


def _is_answer(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.keys() & {"choices", *_TEXTS})


def _several(text: str, value: Any) -> bool:
    lines = text.splitlines() if value is None else []
    values = value if isinstance(value, list) else map(_json, lines) if len(lines) > 1 else ()
    return any(map(_is_answer, values))
