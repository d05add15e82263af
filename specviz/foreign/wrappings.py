"""What figures come wrapped in: a terminal's width, a logger's JSON, a browser's recording, a metrics database.

Only what stands where programs put lines of a log is looked into: a model's own words may quote any log.
"""

import base64
import re
from collections.abc import Iterator
from typing import Any

#: Under these names JSON loggers and collectors keep a line: Docker's json-file and Fluentd, journald,
#: python-json-logger and most others, Google, CloudWatch, Grafana, structlog.
_LINE_NAMES = ("log", "MESSAGE", "message", "msg", "textPayload", "@message", "line", "event")

#: What a model was asked and what it wrote stands under these names.
_WORDS = {"choices", "messages", "prompt", "delta", "input", "output", "request", "tool_calls"}

#: What a terminal colours with.
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

#: vllm/v1/metrics/reader.py: what ``print(llm.get_metrics())`` writes of a counter or of one by position.
_METRIC = re.compile(
    r"(?:Counter|Vector|Gauge)\(name='([\w:]+)', labels=\{([^{}\n]*)\}, values?=(\[[\d., ]*\]|[\d.e+]+)\)"
)

#: Widths of a terminal, and how much of it a wrapped line fills at least.
_NARROWEST, _WIDEST, _FILLED = 40, 400, 0.7


def plain(text: str) -> str:
    """The text without colours, with line ends of one kind and with vLLM's metrics as its /metrics has them."""
    text = _COLOURS.sub("", text.lstrip("\ufeff").replace("\r\n", "\n"))
    return _METRIC.sub(
        lambda match: _exposed(match[1], match[2].replace("': '", '="').replace("'", '"'), match[3]), text
    )


def _exposed(name: str, labels: str, value: str) -> str:
    labels = re.sub(r'"(\w+)="', r'\1="', labels)
    values = value.strip("[]").split(", ")
    if not value.startswith("["):
        return f"\n{_counter(name)}{{{labels}}} {value}\n"
    places = (f'{_counter(name)}{{{labels},position="{place}"}} {each}' for place, each in enumerate(values))
    return "\n" + "\n".join(places) + "\n"


def _counter(name: str) -> str:
    return name if "spec_decode" not in name or name.endswith("_total") else f"{name}_total"


def joined(text: str) -> str:
    """The lines as they were before a terminal or a mail wrapped them, if it did: a line goes on in the next one if
    that one's first word did not fit, and if that one does not begin as it does itself."""
    lines = text.split("\n")
    width = max(map(len, lines))
    if not _NARROWEST <= width <= _WIDEST:
        return text
    whole: list[str] = []
    last = ""
    for line in lines:
        fits = len(last) + 1 + len(line.split(" ", 1)[0]) <= width or len(last) < _FILLED * width
        if not whole or not line or fits or _shape(line) == _shape(whole[-1]):
            whole.append(line)
        else:
            whole[-1] += line if len(last) == width else f" {line}"
        last = line
    return "\n".join(whole)


def _shape(line: str) -> str:
    """How a line begins: of which kinds of characters."""
    return re.sub("[A-Za-z]", "a", re.sub(r"\d", "0", line[:6]))


def lines_within(entry: Any) -> Iterator[str]:
    """The lines of a log, the answers and the samples that an object holds as strings, in their order."""
    waiting = [entry]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            # Loki: a time and a line.
            pair = len(value) == 2 and all(isinstance(part, str) for part in value) and value[0].isdigit()
            yield from value[1:] if pair else ()
            waiting += reversed(value)
        if not isinstance(value, dict):
            continue
        held = list(_samples(value)) or list(filter(None, (_line(value.get(name)) for name in _LINE_NAMES)))[:1]
        held = held or list(_recorded(value))
        yield from held
        if not held:
            waiting += reversed([child for name, child in value.items() if name not in _WORDS])


def _recorded(value: dict[str, Any]) -> Iterator[str]:
    """An answer in a HAR, and what a cell of a notebook printed."""
    content = value.get("text")
    if isinstance(content, str) and "mimeType" in value:
        packed = value.get("encoding") == "base64"
        yield base64.b64decode(content, validate=False).decode(errors="replace") if packed else content
    elif value.get("output_type") == "stream":
        yield "".join(map(str, content)) if isinstance(content, list) else str(content)


def _line(value: Any) -> str | None:
    """journald gives a line with colours as a list of bytes."""
    if isinstance(value, list) and value and all(type(byte) is int and 0 <= byte < 256 for byte in value):
        return bytes(value).decode(errors="replace")
    return value if isinstance(value, str) else None


def _samples(value: dict[str, Any]) -> Iterator[str]:
    """What Prometheus' API answers, in the order of time, and a counter of vLLM's get_metrics() as JSON, both as lines
    of a scrape."""
    series = value.get("result")
    if isinstance(series, list) and "resultType" in value:
        samples = [(point[0], one["metric"], point[1]) for one in series for point in _points(one)]
        for _, labels, sample in sorted(samples, key=lambda each: each[0]):
            others = ",".join(f'{name}="{label}"' for name, label in labels.items() if name != "__name__")
            yield f"{labels.get('__name__', '')}{{{others}}} {sample}\n"
    name, labels, number = value.get("name"), value.get("labels"), value.get("values", value.get("value"))
    if isinstance(name, str) and name.startswith("vllm:") and isinstance(labels, dict) and number is not None:
        yield _exposed(name, ",".join(f'{key}="{label}"' for key, label in labels.items()), str(number))


def _points(series: Any) -> list[list[Any]]:
    """Times and values of one series of a vector or a matrix."""
    if not isinstance(series, dict) or not isinstance(series.get("metric"), dict):
        return []
    points = series.get("values", [series.get("value")])
    points = points if isinstance(points, list) else []
    return [point for point in points if isinstance(point, list) and len(point) == 2 and type(point[0]) in (int, float)]
