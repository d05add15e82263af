"""Text for training: files as tokens with a held-out tail, blocks drawn from them, and the target's own continuations.

A drafter meets two kinds of text, what people wrote (prompts) and what the target writes, and learns from both.
"""

import contextlib
import hashlib
import lzma
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from specviz.records.errors import SpecvizError, first_line
from specviz.records.files import decoded

#: Tokens per block: one row of a batch.
BLOCK_SIZE = 256

#: The share of a text that is held out by default, and the most tokens that this may be.
_HELD_OUT_SHARE, _HELD_OUT_MOST = 0.05, 100_000

#: Tokens of the corpus that begin each continuation, the temperatures of the rest, and how many are written at once: on
#: a GPU a pass over thousands takes hardly longer than one over few.
_PROMPT_TOKENS = 32
_TEMPERATURES = (0.0, 0.7, 1.0)
ROWS = {"cpu": 64, "cuda": 2048}
_ROWS_HELD_OUT = 16

#: Characters tokenised at a time.
_PIECE = 100_000


@dataclass(frozen=True)
class Text:
    """One text as tokens."""

    name: str
    ids: Tensor  # [n] int64, to learn from
    held_out: Tensor  # [n] int64, the tail, which is only ever measured on


@dataclass(frozen=True)
class Corpus:
    """Texts and how often each is drawn from. If there are continuations, they are half of all blocks."""

    texts: tuple[Text, ...]
    weights: tuple[float, ...]  # one per text, summing to 1
    continuations: Tensor | None = None  # [n, BLOCK_SIZE] int32, blocks that the target wrote

    def batch(self, rows: int, seed: int, step: int) -> Tensor:
        """The blocks of this step, [rows, BLOCK_SIZE] int64; they depend on `seed` and `step` alone."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        written = self.continuations
        continued = 0 if written is None else (rows + step % 2) // 2  # of a single row, every other step
        blocks = [self._cut(generator, BLOCK_SIZE) for _ in range(rows - continued)]
        if written is not None and continued:
            blocks.extend(written[torch.randint(len(written), (continued,), generator=generator)].long())
        return torch.stack(blocks)

    def prompts(self, rows: int, generator: torch.Generator, held_out: bool = False) -> Tensor:
        """Beginnings for continuations, [rows, _PROMPT_TOKENS] int64."""
        return torch.stack([self._cut(generator, _PROMPT_TOKENS, held_out) for _ in range(rows)])

    def _cut(self, generator: torch.Generator, length: int, held_out: bool = False) -> Tensor:
        index = int(torch.multinomial(torch.tensor(self.weights), 1, generator=generator))
        ids = self.texts[index].held_out if held_out else self.texts[index].ids
        start = int(torch.randint(len(ids) - length + 1, (1,), generator=generator))
        return ids[start : start + length]


def held_out_blocks(text: Text, most: int) -> Tensor:
    """At most `most` blocks, [n, BLOCK_SIZE] int64, evenly spread over the held-out tail without overlap."""
    blocks = text.held_out[: len(text.held_out) // BLOCK_SIZE * BLOCK_SIZE].view(-1, BLOCK_SIZE)
    count = min(most, len(blocks))
    return blocks[torch.arange(count) * len(blocks) // count]


def read_corpus(
    files: Sequence[pathlib.Path],
    tokenizer: PreTrainedTokenizerBase,
    weights: Sequence[float] = (),
    held_out: Sequence[int] = (),
) -> Corpus:
    """Reads and tokenises texts.

    files: text files, `.xz` files of text, or folders, whose `.txt` and `.py` files are read in path order.
    weights: how often each is drawn from; by default in proportion to length.
    held_out: how many tokens at the end of each are never learnt from; by default 5 %, at most 100,000.

    Raises SpecvizError: field ``text`` for a file that cannot be read or is too short for one block of each kind,
    ``weights`` or ``held-out`` for numbers that do not fit the files.
    """
    for numbers, name in ((weights, "weights"), (held_out, "held-out")):
        if numbers and len(numbers) != len(files):
            raise SpecvizError(
                "Give --{name} one number for each --text: {expected}, not {given}.",
                name,
                name=name,
                expected=len(files),
                given=len(numbers),
            )
    if not all(0 <= weight < math.inf for weight in weights) or (weights and not sum(weights)):
        raise SpecvizError("The weights of the texts must be positive numbers.", "weights")
    names = [path.name for path in files]
    texts = tuple(
        _split(
            path.name if names.count(path.name) == 1 else str(path),
            _tokenise(_read(path), tokenizer),
            held_out[index] if held_out else None,
        )
        for index, path in enumerate(files)
    )
    shares = list(weights) or [len(text.ids) for text in texts]
    return Corpus(texts, tuple(share / sum(shares) for share in shares))


def _read(path: pathlib.Path) -> str:
    try:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".py") and file.is_file())
            return "\n".join(decoded(file.read_bytes()) for file in inside)
        raw = path.read_bytes()
        return decoded(lzma.decompress(raw) if path.suffix == ".xz" else raw)
    except OSError as error:
        raise SpecvizError(
            "The text {path} cannot be read: {reason}.", "text", path=path, reason=error.strerror or str(error)
        ) from error
    except SpecvizError as error:  # what is packed, or no text
        raise SpecvizError("The text {path} cannot be read: {reason}", "text", path=path, reason=str(error)) from error
    except lzma.LZMAError as error:
        raise SpecvizError("The text {path} is not an .xz file, or is damaged.", "text", path=path) from error


def _tokenise(text: str, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    # In pieces, because a tokenizer's memory grows far faster than the text; cut after lines, where words end anyway.
    pieces: list[list[str]] = [[]]
    size = 0
    for line in text.splitlines(keepends=True):
        if size > _PIECE:
            pieces.append([])
            size = 0
        pieces[-1].append(line)
        size += len(line)
    encoded = tokenizer(["".join(piece) for piece in pieces], add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([token for ids in encoded for token in ids], dtype=torch.long)


def _split(name: str, ids: Tensor, held_out: int | None) -> Text:
    if not len(ids):
        raise SpecvizError("{name} holds no text: in a folder, only .txt and .py files are read.", "text", name=name)
    if held_out is None:
        held_out = max(BLOCK_SIZE, min(int(_HELD_OUT_SHARE * len(ids)), _HELD_OUT_MOST))
    if held_out < BLOCK_SIZE or len(ids) - held_out < BLOCK_SIZE:
        raise SpecvizError(
            "{name} has only {tokens} tokens: with {held_out} held out, this is too few for one block of {block} "
            "to learn from and another to measure on.",
            "text",
            name=name,
            tokens=f"{len(ids):,}",
            block=BLOCK_SIZE,
            held_out=f"{held_out:,}",
        )
    return Text(name, ids[:-held_out], ids[-held_out:])


@contextlib.contextmanager
def writing(folder: pathlib.Path) -> Iterator[None]:
    """Makes the folder; turns an error in writing there, such as a full disk, into a SpecvizError (field ``out``)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise SpecvizError(
            "Nothing can be written to {folder} ({reason}). What was written before is intact: make room, or name "
            "another folder.",
            "out",
            folder=folder,
            reason=reason,
        ) from error


def with_target_text(target: PreTrainedModel, corpus: Corpus, tokens: int, file: pathlib.Path) -> Corpus:
    """The corpus plus what the target writes itself: blocks to learn from, and two texts to measure on."""
    blocks = continue_texts(target, corpus, tokens, file)
    return replace(with_own_texts(target, corpus), continuations=blocks)


def with_own_texts(target: PreTrainedModel, corpus: Corpus) -> Corpus:
    """The corpus plus two texts of the target's to measure on, greedy and at temperature 1. They begin with held-out
    text."""
    generator = torch.Generator().manual_seed(0)
    texts = []
    for name, temperature in (("own, greedy", 0.0), ("own, sampled", 1.0)):
        written = write_on(target, corpus.prompts(_ROWS_HELD_OUT, generator, held_out=True), temperature, seed=0)
        texts.append(Text(name, torch.empty(0, dtype=torch.long), written.long().flatten()))
    return replace(corpus, texts=(*corpus.texts, *texts), weights=(*corpus.weights, *[0.0] * len(texts)))


def continue_texts(target: PreTrainedModel, corpus: Corpus, tokens: int, file: pathlib.Path, seed: int = 0) -> Tensor:
    """Blocks that begin with text of the corpus and are continued by the target, [n, BLOCK_SIZE] int32 on the CPU.

    A third of the batches each at temperatures 0, 0.7 and 1: drafters meet greedy text, with its loops, too.
    tokens: at least this many in all. file: keeps them between runs, so that nothing is written twice; those of another
    target are not taken.
    """
    blocks, rows = _written(target, file), ROWS[target.device.type]
    missing = batches_to_write(target, tokens, file)
    for index in tqdm(missing, desc="the target writes", unit="batch", disable=not missing):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        written = write_on(target, corpus.prompts(rows, generator), _TEMPERATURES[index % 3], seed + index)
        blocks = torch.cat([blocks, written])
        with writing(file.parent):
            save_file({"blocks": blocks}, partial := file.with_suffix(".partial"), {"target": fingerprint(target)})
            os.replace(partial, file)
    return blocks[: missing.stop * rows]


def batches_to_write(target: PreTrainedModel, tokens: int, file: pathlib.Path) -> range:
    """The numbers of the batches of continuations that `file` still lacks of at least so many tokens in all."""
    rows = ROWS[target.device.type]
    wanted = -(-tokens // (BLOCK_SIZE * rows))
    return range(min(len(_written(target, file)) // rows, wanted), wanted)


def _written(target: PreTrainedModel, file: pathlib.Path) -> Tensor:
    if file.exists():
        # Half a file, from a disk that was full, is written anew.
        with contextlib.suppress(SafetensorError), safe_open(file, "pt") as written:
            if (written.metadata() or {}).get("target") == fingerprint(target):
                return written.get_tensor("blocks")
    return torch.empty(0, BLOCK_SIZE, dtype=torch.int32)


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """Tells weights apart: by their names and shapes, and by a few numbers of each, which any training changes."""
    seen = hashlib.sha256()
    for name, weight in model.named_parameters():
        few = weight.flatten()[:: max(1, weight.numel() // 8)].float().tolist()
        seen.update(f"{name} {tuple(weight.shape)} {few}".encode())
    return seen.hexdigest()[:12]


@torch.inference_mode()
def write_on(
    target: PreTrainedModel, prompts: Tensor, temperature: float, seed: int, length: int = BLOCK_SIZE
) -> Tensor:
    """The prompts [n, k] continued to [n, length], int32 on the CPU; end tokens do not stop them."""
    generator = torch.Generator(target.device).manual_seed(seed)
    unread = written = prompts.to(target.device)
    cache = DynamicCache(config=target.config)
    while written.shape[1] < length:
        output = target(input_ids=unread, cache=cache, use_cache=True, logits_to_keep=1)
        logits = output.logits[:, -1].float()
        if temperature:
            unread = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        else:
            unread = logits.argmax(-1, keepdim=True)
        written = torch.cat([written, unread], 1)
    return written.cpu().to(torch.int32)
