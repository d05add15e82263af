"""The chip in the head that says which passes runs take, and how far better ones are while they are being prepared."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr

from specviz.models.pair import ModelPair
from specviz.records.words import Words
from specviz.ui.background import Stage
from specviz.ui.components import as_text
from specviz.views.run_messages import passes_words

#: Seconds between two looks while something is being prepared.
LOOK_EVERY = 2


@dataclass(frozen=True)
class PassesChip:
    """The chip, and the timer that has it look again."""

    chip: gr.Markdown
    timer: gr.Timer


def create_passes_chip(pair: ModelPair, say: Words) -> PassesChip:
    """Lays out the chip, as it is before the page has asked."""
    stage = Stage()
    chip = gr.Markdown(_text(pair, stage, say), elem_classes=_classes(pair, stage), elem_id="passes")
    return PassesChip(chip, gr.Timer(LOOK_EVERY, active=False))


def look(pair: ModelPair, stage: Stage, say: Words) -> list[gr.components.Component]:
    """The chip and its timer as they are now; the timer rests when there is nothing to wait for."""
    chip = gr.Markdown(_text(pair, stage, say), elem_classes=_classes(pair, stage))
    return [chip, gr.Timer(active=stage.step is not None)]


def _text(pair: ModelPair, stage: Stage, say: Words) -> str:
    kind = pair.passes.kind
    text = passes_words(kind, say) if stage.step is None else say(f"passes.{kind}_yet", step=say.step(stage.step))
    return as_text(text)


def _classes(pair: ModelPair, stage: Stage) -> list[str]:
    return ["sv-passes", f"sv-passes-{'preparing' if stage.step else pair.passes.kind}"]
