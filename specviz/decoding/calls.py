"""What Python users call: a run round by round, or as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specviz.decoding.engine import rounds
from specviz.decoding.request import Request, prepare
from specviz.decoding.run_record import collect
from specviz.models.pair import ModelPair
from specviz.records.runs import Round, Run
from specviz.records.settings import RunSettings


def speculate(pair: ModelPair, prompt: str | Sequence[int], **settings: Any) -> Iterator[Round]:
    """Continues `prompt` (text or token ids), yielding one Round per target pass.

    settings: fields of `RunSettings` by name. None means the default, except for the drafter: ``drafter=None`` is plain
    decoding.

    Whatever the drafter, the output follows the target's distribution (Leviathan et al. 2023, arXiv 2211.17192,
    Alg. 1), unless the rule is ``typical``, which is lossy. The same seed gives the same run on the same device. Raises
    SpecvizError, with `field` set, before the first round if the settings are invalid. Closing the generator stops the
    run at the end of its round.
    """
    return rounds(_ordered(pair, prompt, settings))


def run(pair: ModelPair, prompt: str | Sequence[int], **settings: Any) -> Run:
    """The rounds of `speculate`, collected into a Run; takes the same arguments."""
    request = _ordered(pair, prompt, settings)
    return collect(request, list(rounds(request)))


def _ordered(pair: ModelPair, prompt: str | Sequence[int], settings: dict[str, Any]) -> Request:
    named = {name: value for name, value in settings.items() if value is not None or name == "drafter"}
    return prepare(pair, RunSettings(prompt, **named))
