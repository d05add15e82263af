"""What a loaded model is tried on before anybody waits for it: a few tokens show whether it can run here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from transformers import PreTrainedModel

from specviz.models.pair import logit_width, position_limit
from specviz.models.sources import ModelSource
from specviz.passes.reading_checks import reads_ahead, reads_on, reads_trees, why_no_exit, width_of_logits
from specviz.records.errors import SpecvizError, first_line

#: A context with less room ends before a text has begun.
_LEAST_POSITIONS = 16


def try_model(model: PreTrainedModel, source: ModelSource) -> None:
    """Refuses a model that cannot run, or does not write from left to right; learns whether it reads trees, and whether
    it runs when it is left early."""
    known = {"name": source.name, "kind": source.config.model_type}
    positions = position_limit(model)
    if positions is not None and positions < _LEAST_POSITIONS:
        raise SpecvizError(
            "{name} has a context of {positions} tokens, as its config.json says: too few for a text.",
            source.field,
            name=source.name,
            positions=positions,
        )
    with reading(source):
        ahead, on, width = reads_ahead(model), reads_on(model), width_of_logits(model)
    if ahead:
        raise SpecvizError(
            "In {name} ({kind}) tokens see those that come after them, as in encoders and embedding models: it cannot "
            "write a text token by token.",
            source.field,
            **known,
        )
    if width != logit_width(model):
        raise SpecvizError(
            "{name} ({kind}) gives {given} logits for a token, and its output layer is said to have {said}: its "
            "config.json does not describe its vocabulary.",
            source.field,
            **known,
            given=width,
            said=logit_width(model),
        )
    if not on:
        raise SpecvizError(
            "{name} ({kind}) was tried on a short text and reads it otherwise in several passes than in one, so it has "
            "no text of its own to compare with. Often its config.json has a setting that this architecture does not "
            "know, such as sliding_window: take it out.",
            source.field,
            **known,
        )
    reads_trees(model)
    why_no_exit(model)


@contextlib.contextmanager
def reading(source: ModelSource) -> Iterator[None]:
    """Within it, whatever the model raises is a refusal: an architecture may raise anything over a text alone."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise SpecvizError(
            "{name} ({kind}) cannot read a text: {reason}.",
            source.field,
            name=source.name,
            kind=source.config.model_type,
            reason=first_line(error),
        ) from error
