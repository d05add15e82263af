"""How long a training will take, said before it begins: two steps are timed and undone, and a few of the passes with
which the target writes."""

import time

import torch
from transformers import PreTrainedModel

from specviz.training.data import BLOCK_SIZE, ROWS, Corpus, write_on
from specviz.training.loop import Recipe, Schedule, make_optimisers, step_on

#: How many passes of the target are timed.
_PASSES = 4

#: How many times as long as was timed it may take. Other programs come and go, held-out text is measured in between,
#: and a pass takes longer the more the texts have grown.
_STEPS_AT_MOST, _PASSES_AT_MOST = 1.5, 2.0


def forecast(recipe: Recipe, corpus: Corpus, schedule: Schedule, target: PreTrainedModel | None, batches: int) -> str:
    """A sentence about a training that has not begun. batches: of continuations that the target has yet to write."""
    steps = schedule.steps * seconds_a_step(recipe, corpus, schedule)
    writing, tokens, options = 0.0, "", "--tokens"
    if target is not None and batches:
        writing = batches * seconds_a_batch(target, corpus)
        tokens = f"the target writes {batches * ROWS[target.device.type] * BLOCK_SIZE:,} tokens, then "
        options = "--tokens and --continuations"
    duration = in_words(steps + writing, _STEPS_AT_MOST * steps + _PASSES_AT_MOST * writing)
    learnt = f"{schedule.steps:,} steps of {schedule.rows * BLOCK_SIZE:,} tokens"
    return f"{recipe.name}: {tokens}{learnt}, about {duration} on this machine. Change it with {options}."


def seconds_a_step(recipe: Recipe, corpus: Corpus, schedule: Schedule) -> float:
    """Of training. The student is afterwards what it was."""
    weights = {name: weight.clone() for name, weight in recipe.student.state_dict().items()}
    optimisers = make_optimisers(recipe.student, schedule.lr, recipe.dtype)
    ids = corpus.batch(schedule.rows, schedule.seed, 0).to(recipe.device)
    for _ in range(2):  # the first is slower
        started = time.perf_counter()
        step_on(recipe, optimisers, ids, 0, schedule)
        seconds = time.perf_counter() - started
    recipe.student.load_state_dict(weights)
    return seconds


def seconds_a_batch(target: PreTrainedModel, corpus: Corpus) -> float:
    """Of continuations, by passes over texts of a few tokens."""
    prompts = corpus.prompts(ROWS[target.device.type], torch.Generator().manual_seed(0))[:, :1]
    for length in (2, 1 + _PASSES):  # the first is slower
        started = time.perf_counter()
        write_on(target, prompts, temperature=1.0, seed=0, length=length)
        seconds = time.perf_counter() - started
    return seconds / _PASSES * BLOCK_SIZE


def in_words(shortest: float, longest: float) -> str:
    """Such a span of seconds, rounded: ``40 minutes to 1 hour``."""
    ends = dict.fromkeys(map(_rounded, (shortest, longest)))
    return " to ".join(ends)


def _rounded(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 57.5:
        count, unit = float(max(1, round(minutes) if minutes < 10 else 5 * round(minutes / 5))), "minute"
    elif minutes < 48 * 60:
        count, unit = round(minutes / 30) / 2 if minutes < 5 * 60 else round(minutes / 60), "hour"
    else:
        count, unit = round(minutes / 60 / 24), "day"
    return f"{count:g} {unit}{'' if count == 1 else 's'}"
