"""A race and a comparison, each as a page in a single file: what its tab shows once everything is measured."""

from __future__ import annotations

from collections.abc import Callable

from specviz.records.runs import Run
from specviz.records.words import Words
from specviz.views import run_messages as messages
from specviz.views.file_page import file_page
from specviz.views.whole_run import label, settings_of


def race_page(plain: Run, speculative: Run, outcome: dict[str, object], machine: str, language: str) -> str:
    """Both runs on one clock, as HTML. outcome: how they compare, see `Duel`. language: what it opens in."""

    def said(say: Words) -> dict[str, object]:
        return {
            "words": say.texts("common", "race", "passes"),
            "settings": " · ".join([f"γ = {speculative.num_draft_tokens}", settings_of(speculative, say), machine]),
            "message": messages.race_message(plain, speculative, outcome, drafter=label(speculative.drafter, say)),
        }

    return file_page("race", language, speculative, said)


def comparison_page(plain: Run, message: Callable[[Words], str], machine: str | None, language: str) -> str:
    """The ranked table, as HTML. plain: its first contestant's run. message: the whole table."""

    def said(say: Words) -> dict[str, object]:
        return {
            "words": say.texts("common", "compare"),
            "settings": " · ".join(filter(None, [settings_of(plain, say), machine])),
            "label": say("controls.prompt"),
            "message": message(say),
        }

    return file_page("compare", language, plain, said, prompt=plain.prompt.text)
