"""The chip in the head that says which passes runs take, and how far better ones are while they are being prepared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.models.pair import ModelPair
from specviz.records.words import Words
from specviz.ui.background import Stage
from specviz.ui.components import as_text
from specviz.ui.controls import QUIET
from specviz.ui.models_tab import ModelsTab, describe
from specviz.ui.orders import PairName, PairStore
from specviz.views.run_messages import passes_words

#: Seconds between two looks while something is being prepared.
LOOK_EVERY = 2


@dataclass(frozen=True)
class PassesChip:
    """The chip, and what makes it look again."""

    chip: gr.Markdown
    timer: gr.Timer

    def wire(self, blocks: gr.Blocks, store: PairStore, models: ModelsTab, say: Words) -> None:
        """Looks when the page is opened, when another pair is in use, and on until there is nothing to wait for.

        Small requests of their own rather than an open stream: a page that is only looked at keeps no connection.
        """

        def look(name: dict[str, Any]) -> list[Any]:
            pair = store.loaded(PairName(**name)) or store.home
            stage = store.preparer.stage(pair)
            chip = gr.Markdown(as_text(chip_text(pair, stage, say)), elem_classes=_classes(pair, stage))
            return [chip, gr.Timer(active=stage.step is not None), describe(pair, stage, say)]

        seen = [self.chip, self.timer, models.status]
        for moment in (blocks.load, self.timer.tick, *(load.success for load in models.loads)):
            moment(look, models.pair, seen, **QUIET)


def create_passes_chip(pair: ModelPair, say: Words) -> PassesChip:
    """Lays out the chip, as it is before the page has asked."""
    stage = Stage()
    chip = gr.Markdown(as_text(chip_text(pair, stage, say)), elem_classes=_classes(pair, stage), elem_id="passes")
    return PassesChip(chip, gr.Timer(LOOK_EVERY, active=False))


def chip_text(pair: ModelPair, stage: Stage, say: Words) -> str:
    """What runs take, and what is being prepared."""
    kind = pair.passes.kind
    return passes_words(kind, say) if stage.step is None else say(f"passes.{kind}_yet", step=say.step(stage.step))


def _classes(pair: ModelPair, stage: Stage) -> list[str]:
    return ["sv-passes", f"sv-passes-{'preparing' if stage.step else pair.passes.kind}"]
