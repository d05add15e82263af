"""The controls of a run, shared by the tabs that start one, and the sentence beside the one that is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.presets import PRESETS
from specviz.ui.orders import Order, PairName
from specviz.ui.settings import Settings
from specviz.ui.stream import Runner

DRAFTER_LABELS = {"draft_model": "Draft model", "prompt_lookup": "Prompt lookup", "plain": "None: plain decoding"}


@dataclass(frozen=True, slots=True)
class Controls:
    """The components by the name of the Order field they fill."""

    fields: dict[str, gr.components.Component]

    def order(self, pair: PairName, values: dict[str, Any]) -> Order:
        """The order that `values`, by field, describe."""
        drafter = None if values["drafter"] == "plain" else values["drafter"]
        return Order(pair=pair, **(values | {"drafter": drafter, "prompt": values["prompt"] or ""}))

    def validations(self, runner: Runner, pair: PairName, values: dict[str, Any]) -> list[dict[str, Any]]:
        """One verdict a control, in their order: Gradio shows the sentence at the control and starts nothing.

        What only a loaded pair can tell is checked when it is loaded.
        """
        error = self._mistake(runner, pair, values)
        verdicts = [gr.validate(True, "") for _ in self.fields]
        if error:
            place = list(self.fields).index(error.field) if error.field in self.fields else 0
            verdicts[place] = gr.validate(False, error.message)
        return verdicts

    def _mistake(self, runner: Runner, pair: PairName, values: dict[str, Any]) -> SpecvizError | None:
        loaded = runner.store.loaded(pair)
        if loaded is None:
            return None
        try:
            self.order(pair, values).request(loaded, runner.settings)
        except SpecvizError as error:
            return error
        return None


def create_controls(settings: Settings, *, drafters: list[str]) -> Controls:
    """Prompt with presets, drafter, γ, temperature; the rest folded away."""
    fields: dict[str, gr.components.Component] = {}
    fields["prompt"] = gr.Textbox(PRESETS[0].prompt, label="Prompt", lines=4, max_lines=10, elem_classes=["sv-prompt"])
    with gr.Row(elem_classes=["sv-presets"]):
        for preset in PRESETS:
            button = gr.Button(preset.label, size="sm", min_width=40, elem_classes=["sv-preset"])
            button.click(
                lambda text=preset.prompt: text,
                None,
                fields["prompt"],
                show_progress="hidden",
                queue=False,
                api_visibility="private",
            )
    fields["drafter"] = gr.Radio(
        [(DRAFTER_LABELS[name], name) for name in drafters], value=drafters[0], label="Drafter"
    )
    fields["num_draft_tokens"] = gr.Slider(
        1, settings.max_draft_tokens, value=4, step=1, label="Draft tokens per round, γ"
    )
    fields["temperature"] = gr.Slider(0, 2, value=0.8, step=0.05, label="Temperature (0 is greedy)")
    with gr.Accordion("More: length, seed, top-k, top-p, min-p", open=False):
        fields["max_new_tokens"] = gr.Slider(
            1, settings.max_new_tokens, value=min(128, settings.max_new_tokens), step=1, label="New tokens"
        )
        fields["seed"] = gr.Number(0, label="Seed")
        fields["top_k"] = gr.Number(0, label="Top-k (0 is off)")
        fields["top_p"] = gr.Number(1, step=0.05, label="Top-p (1 is off)")
        fields["min_p"] = gr.Number(0, step=0.01, label="Min-p (0 is off)")
        fields["chat"] = gr.Checkbox(False, label="Chat template (for chat-tuned models)")
    return Controls(fields)
