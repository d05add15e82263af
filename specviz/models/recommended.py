"""The sampling that a model's files recommend. It is offered to people, and never applied by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specviz.records.errors import SpecvizError
from specviz.records.settings import SamplingParams

#: By the name of each setting, as generation_config.json has it too, its key in the header of a GGUF file.
GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
}


def recommended_sampling(said: Mapping[str, Any]) -> SamplingParams | None:
    """The sampling that a generation_config.json recommends by what it `said`; None if it does not.

    What it leaves out is off, and what no control of ours takes (a top-k of -1, a text) counts as left out.
    """
    if said.get("do_sample") not in (None, True):
        return None
    taken = {name: said[name] for name in GGUF_KEYS if _is_taken(name, said.get(name))}
    return SamplingParams(**taken) if taken else None


def said_in_header(header: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings out of the header of a GGUF file, whose 0.95 is one in float32."""
    said = {name: header[key] for name, key in GGUF_KEYS.items() if key in header}
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in said.items()}


def _is_taken(name: str, value: Any) -> bool:
    try:
        SamplingParams(**{name: value})
    except SpecvizError:
        return False
    return True
