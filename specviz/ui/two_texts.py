"""Two texts of other engines that should be equal: pasted below the Lossless tab, and judged by the loaded target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.records.errors import SpecvizError
from specviz.ui.components import as_text, fold_switch, verdicts
from specviz.ui.pairs import PairName
from specviz.ui.runner import Visit, closing
from specviz.ui.tabs import Action, Desk
from specviz.views.two_texts import parting_lines

if TYPE_CHECKING:
    from specviz.bench.two_texts import Parting
    from specviz.models.pair import ModelPair

#: The names of the two texts on the page.
NAMES = "A", "B"


def create_two_texts(desk: Desk) -> Action:
    """Lays out a folded form for the texts and their prompt, its button, and the place for the verdict."""
    runner, say = desk.runner, desk.say
    fold_switch(say("two_texts.title"), "two-texts")
    with gr.Column(elem_id="two-texts", elem_classes=["sv-more"]):
        gr.Markdown(say("two_texts.about"), elem_classes=["sv-note"])
        with gr.Row():
            one, other = (
                gr.Textbox(
                    label=say("two_texts.text", name=name), lines=5, max_lines=12, elem_id=f"text-{name.lower()}"
                )
                for name in NAMES
            )
        prompt = gr.Textbox(
            label=say("two_texts.prompt"), info=say("two_texts.prompt_info"), lines=2, elem_id="text-prompt"
        )
        chat = gr.Checkbox(False, label=say("two_texts.chat"), elem_id="text-chat")
        with gr.Row(elem_classes=["sv-actions"]):
            go = gr.Button(say("two_texts.go"), elem_id="compare-texts")
        view = gr.Markdown(elem_classes=["sv-note", "sv-findings"], elem_id="texts-verdict")
    fields = {"pair": desk.controls.pair, "one": one, "other": other, "prompt": prompt, "chat": chat}

    def check(heard: dict[str, Any], *given: Any) -> list[dict[str, Any]]:
        try:
            check_texts(runner.store.loaded(PairName(**heard)), *given, desk.runner.deployment.max_text_tokens)
        except SpecvizError as error:
            return verdicts(fields, error if error.field in fields else error.at("one"), say)
        return verdicts(fields, None, say)

    def stream(visit: Visit, name: PairName, heard: dict[str, Any], *given: Any) -> Iterator[str]:
        yield say("common.preparing")
        pair = runner.store.get(name)
        check_texts(pair, *given, runner.deployment.max_text_tokens)
        for batch in closing(runner.batches(name, judged, *given), visit.halt):
            headline, *lines = (as_text(line) for line in parting_lines(batch[-1][0], NAMES, say))
            yield "\n".join([f"**{headline}**", "", *(f"- {line}" for line in lines)])

    return Action(go, view, [*fields.values()], check, stream, as_text, as_text)


def check_texts(pair: ModelPair | None, one: str, other: str, prompt: str, chat: bool, most: int) -> None:
    """Raises SpecvizError, whose field is a parameter's. pair: None until it is loaded, which tells the rest. most: how
    many tokens are read."""
    for name, text in (("one", one), ("other", other)):
        if not text:
            raise SpecvizError("Paste a text here.", name)
    if pair is None:
        return
    from specviz.bench.two_texts import cut

    texts, _ = cut(pair, one, other, prompt, chat)
    for name, ids in zip(("one", "other"), texts):
        if len(ids) > most:
            raise SpecvizError(
                "Prompt and text have {value} tokens, more than the {most} that this page allows.",
                name,
                value=len(ids),
                most=most,
            )


def judged(pair: ModelPair, *given: Any) -> Iterator[tuple[Parting | None]]:
    from specviz.bench.two_texts import parting

    yield (parting(pair, *given),)
