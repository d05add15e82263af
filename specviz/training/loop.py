"""The loop that every recipe runs through: optimisers, steps, resumable checkpoints, a progress bar, validation."""

import math
import os
import pathlib
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from specviz.records.errors import SpecvizError, first_line
from specviz.training.data import BLOCK_SIZE, Corpus, fingerprint, held_out_blocks, writing

#: The quintic of Jordan et al.: five steps bring every singular value near 1.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by Newton-Schulz steps (Jordan et al. 2024; scale of Liu et al., arXiv 2502.16982).

    dtype: of the steps' products; bfloat16 suffices, and pays where the processor has instructions for it.

    `torch.optim.Muon` insists on bfloat16, which is six times slower where it is emulated.
    """

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, dtype: torch.dtype, momentum: float = 0.95):
        super().__init__(matrices, {"lr": lr, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                mean = state.setdefault("momentum", torch.zeros_like(parameter))
                mean.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalised(parameter.grad.lerp(mean, group["momentum"]).to(self.dtype))
                # Updates of AdamW's usual size, whatever the shape, so that one learning rate suits both.
                scale = 0.2 * math.sqrt(max(update.shape[-2:]))
                parameter.add_(update, alpha=-group["lr"] * scale)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Roughly the nearest (semi-)orthogonal matrix to each of [..., rows, columns], by Newton-Schulz iteration."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


#: Output heads: tables, too, of a vector for each token.
_OUTPUTS = re.compile(r"(^|\.)(lm_heads?|markov_w2)\.")


def make_optimisers(module: nn.Module, lr: float, dtype: torch.dtype) -> list[torch.optim.Optimizer]:
    """Muon, products in this dtype, for matrices; AdamW for vectors, and for embeddings and output heads, which are
    tables of them."""
    tables = {id(weight) for part in module.modules() if isinstance(part, nn.Embedding) for weight in part.parameters()}
    tables |= {id(weight) for name, weight in module.named_parameters() if _OUTPUTS.search(name)}
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for parameter in filter(lambda parameter: parameter.requires_grad, module.parameters()):
        (matrices if parameter.dim() > 1 and id(parameter) not in tables else rest).append(parameter)
    optimisers: list[torch.optim.Optimizer] = [Muon(matrices, lr, dtype)] if matrices else []
    if rest:
        optimisers.append(torch.optim.AdamW(rest, lr=lr / 2, betas=(0.9, 0.95), weight_decay=0.0))
    return optimisers


def learning_rate_factor(step: int, steps: int) -> float:
    """1 after a short warm-up, falling linearly to 0 over the second half of the run."""
    warm_up = max(1, min(50, steps // 20))
    return min((step + 1) / warm_up, 2 * (1 - step / steps), 1.0)


#: Gradients of a larger norm are scaled down to this one.
_LARGEST_GRADIENT = 1.0

#: Held-out blocks of each text that are measured during training and at its end, and how many at once.
_BLOCKS_DURING, _BLOCKS_AT_END = 16, 128
_ROWS_MEASURED = 8


#: Files of a result, whole or in shards, and of nothing else.
_SHARDS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")

#: Which run a checkpoint is of, see `_identity`.
Identity = dict[str, float | str]


class Recipe(ABC):
    """A student and its loss."""

    name: ClassVar[str]
    student: nn.Module  # what learns, in float32
    device: torch.device
    dtype: torch.dtype  # of the matrix products
    taught_by: nn.Module | None = None  # the target

    @abstractmethod
    def loss(self, ids: Tensor, step: int) -> Tensor:
        """The scalar loss on blocks [rows, BLOCK_SIZE] int64 on the device; randomness depends on `step` alone."""

    @abstractmethod
    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        """How good each predictor is on blocks [rows, BLOCK_SIZE], by its name: a loss [1] or `agreement` [3]."""

    @abstractmethod
    def save(self, folder: pathlib.Path) -> None:
        """Writes the result in the form that `load_pair` reads."""


@dataclass(frozen=True)
class Schedule:
    """How long, how fast and in what portions a recipe trains."""

    tokens: int  # to learn from in all
    rows: int  # blocks per step
    lr: float  # of the matrices, at its peak
    folder: pathlib.Path  # where the checkpoint lies during training
    seed: int = 0
    every: int = 200  # steps between checkpoints, each with a validation

    @property
    def steps(self) -> int:
        return max(1, self.tokens // (self.rows * BLOCK_SIZE))


def train(recipe: Recipe, corpus: Corpus, schedule: Schedule, out: pathlib.Path, stop_after: int | None = None) -> None:
    """Trains from the last checkpoint, or from the start, to the end of the schedule.

    Every checkpoint is written to `out` as the result is, which can be used while the training goes on. stop_after: end
    early after this many steps in all, as an interruption would; a later call resumes.
    """
    optimisers = make_optimisers(recipe.student, schedule.lr, recipe.dtype)
    file, run = checkpoint_of(recipe, schedule), _identity(recipe, corpus, schedule)
    steps_done = _resume(recipe, optimisers, run, file)
    if steps_done:
        print(f"{recipe.name} goes on after step {steps_done:,} of {schedule.steps:,}.")
    else:
        print(in_lines("before training, held out", validate(recipe, corpus, _BLOCKS_DURING)))
    bar = tqdm(total=schedule.steps, initial=steps_done, desc=recipe.name, unit="step", smoothing=0.05)
    while steps_done < min(schedule.steps, stop_after or schedule.steps):
        ids = corpus.batch(schedule.rows, schedule.seed, steps_done).to(recipe.device)
        loss = step_on(recipe, optimisers, ids, steps_done, schedule)
        steps_done += 1
        bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        bar.update()
        if steps_done % schedule.every == 0 or steps_done == stop_after:
            _write_checkpoint(recipe, optimisers, run, steps_done, file)
            _write_result(recipe, out)
            bar.write(in_lines(f"step {steps_done}, held out", validate(recipe, corpus, _BLOCKS_DURING)))
    bar.close()
    if steps_done == schedule.steps:
        _write_result(recipe, out)
        print(in_lines(f"{recipe.name} in {out}, held out", validate(recipe, corpus)))
        file.unlink(missing_ok=True)


def step_on(
    recipe: Recipe, optimisers: list[torch.optim.Optimizer], ids: Tensor, step: int, schedule: Schedule
) -> float:
    """One step on these blocks [rows, BLOCK_SIZE] int64; its loss."""
    recipe.student.train()
    with torch.autocast(recipe.device.type, recipe.dtype, enabled=recipe.dtype != torch.float32):
        loss = recipe.loss(ids, step)
    loss.backward()
    nn.utils.clip_grad_norm_(recipe.student.parameters(), _LARGEST_GRADIENT)
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = optimiser.defaults["lr"] * learning_rate_factor(step, schedule.steps)
        optimiser.step()
        optimiser.zero_grad()
    return loss.item()


@torch.no_grad()
def validate(recipe: Recipe, corpus: Corpus, blocks: int = _BLOCKS_AT_END) -> dict[str, dict[str, list[float]]]:
    """Text -> predictor -> what `Recipe.measure` returns, averaged over at most `blocks` held-out blocks of it."""
    recipe.student.eval()
    results: dict[str, dict[str, list[float]]] = {}
    for text in corpus.texts:
        held_out = held_out_blocks(text, blocks)
        total: dict[str, Tensor] = {}
        for ids in held_out.split(_ROWS_MEASURED):
            with torch.autocast(recipe.device.type, recipe.dtype, enabled=recipe.dtype != torch.float32):
                figures = recipe.measure(ids.to(recipe.device))
            for name, values in figures.items():
                total[name] = total.get(name, 0) + values.cpu() * len(ids) / len(held_out)
        results[text.name] = {name: values.tolist() for name, values in total.items()}
    return results


def in_lines(title: str, results: dict[str, dict[str, list[float]]]) -> str:
    """What `validate` found, for people."""
    lines = [title]
    for text, figures in results.items():
        for name, values in figures.items():
            loss, *rates = values
            accepted = "" if not rates else f"  Σ min(p, q) {rates[0]:.3f}  first choices agree {rates[1]:.3f}"
            lines.append(f"  {text:<20} {name:<12} loss {loss:.3f}{accepted}")
    return "\n".join(lines)


def checkpoint_of(recipe: Recipe, schedule: Schedule) -> pathlib.Path:
    """The file from which an interrupted training goes on; there is none before and afterwards."""
    return schedule.folder / f"{recipe.name}.checkpoint.pt"


def _write_checkpoint(
    recipe: Recipe, optimisers: list[torch.optim.Optimizer], run: Identity, steps_done: int, file: pathlib.Path
) -> None:
    """Saves everything the rest of the run depends on, in one step, so that an interrupted write costs nothing."""
    state = {
        "done": steps_done,
        "run": run,
        "student": recipe.student.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
    }
    partial = file.with_suffix(".partial")
    try:
        with writing(file.parent):
            torch.save(state, partial)
            os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def _write_result(recipe: Recipe, out: pathlib.Path) -> None:
    """Saves the student in the form that `load_pair` reads. Each file takes its place in one step: whoever reads `out`
    meanwhile finds whole files."""
    with writing(out), tempfile.TemporaryDirectory(dir=out) as temporary:
        recipe.save(pathlib.Path(temporary))
        files = {file.name: file for file in pathlib.Path(temporary).iterdir()}
        for name, file in files.items():
            os.replace(file, out / name)
    for former in out.iterdir():
        if _SHARDS.fullmatch(former.name) and former.name not in files:  # of a result in other shards
            former.unlink()


def _resume(recipe: Recipe, optimisers: list[torch.optim.Optimizer], run: Identity, file: pathlib.Path) -> int:
    """Restores the checkpoint if there is one; returns how many steps are done."""
    if not file.exists():
        return 0
    try:
        state = torch.load(file, map_location=recipe.device, weights_only=True)
        begun = state["run"]
    except Exception as error:
        # Half a file, from a disk that was full: torch's readers raise anything.
        raise SpecvizError(
            "The checkpoint {file} cannot be read ({reason}): delete it, and the training begins anew.",
            "tokens",
            file=file,
            reason=first_line(error),
        ) from error
    if begun != run:
        raise SpecvizError(
            "{file} is the checkpoint of a run with other settings ({settings}): finish that run, or delete the file.",
            "tokens",
            file=file,
            settings=begun,
        )
    recipe.student.load_state_dict(state["student"])
    for optimiser, saved in zip(optimisers, state["optimisers"]):
        optimiser.load_state_dict(saved)
    return state["done"]


def _identity(recipe: Recipe, corpus: Corpus, schedule: Schedule) -> Identity:
    """What a run cannot change half-way. Not where the student started: that may lie in the folder of the result."""
    settings: Identity = {"tokens": schedule.tokens, "batch": schedule.rows, "lr": schedule.lr, "seed": schedule.seed}
    texts = ", ".join(f"{text.name} ({len(text.ids):,} tokens)" for text in corpus.texts if len(text.ids))
    target = "" if recipe.taught_by is None else fingerprint(recipe.taught_by)
    size = sum(weight.numel() for weight in recipe.student.parameters())
    written = 0 if corpus.continuations is None else len(corpus.continuations)
    drawn = {"weights": ", ".join(f"{weight:.4g}" for weight in corpus.weights), "continuations": written}
    return settings | {"text": texts, "parameters": size, "target": target} | drawn
