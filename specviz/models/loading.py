"""From names to a pair: finds the models, checks them, reads them, and times their passes."""

import contextlib
import os
import pathlib
import string
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specviz.models.checks import check_architecture, check_quantisation, reading, try_model
from specviz.models.gguf_files import read_once
from specviz.models.hub import token_given
from specviz.models.memory_share import measured_memory
from specviz.models.pair import ModelPair, logit_width
from specviz.models.pair_passes import PairPasses
from specviz.models.pass_timer import SHOWN_WIDTHS, leave_a_core_free, most_threads, settle_threads, time_passes
from specviz.models.placement import (
    Place,
    check_default_device,
    dtype_named,
    half_precision,
    place_named,
    release_memory,
    set_libraries_aside,
)
from specviz.models.preparation import prepare_passes
from specviz.models.refusals import refusing_out_of_memory
from specviz.models.sources import (
    ModelSource,
    Progress,
    find_model,
    generation_settings,
    load_tokenizer,
    quietly,
    recommended_sampling,
)
from specviz.models.trained_parts import Name, load_parts, sort_drafts
from specviz.models.vocabularies import Translation, same_vocabulary
from specviz.models.weights import check_memory, choose_dtype, load_weights, with_room
from specviz.passes.devices import home_of
from specviz.passes.model_twins import narrow_head
from specviz.records.assets import EMBEDDED
from specviz.records.errors import SpecvizError, quoted, require_text
from specviz.records.settings import PASSES
from specviz.records.words import Bytes, Sentence

#: A draft model that shares less of its vocabulary than this can propose next to nothing.
_LEAST_SHARED = 0.01

#: A draft model with fewer tokens can propose little.
LEAST_FREQUENT = 64

#: How SentencePiece writes a space.
_SPACE = "▁"


def load_pair(
    target: Name | None = None,
    draft: Name | Sequence[Name] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    draft_revision: str | None = None,
    draft_vocabulary: int | None = None,
    token: str | None = None,
    passes: str = "cached",
    progress: Progress | None = None,
) -> ModelPair:
    """Load a target and the models that draft for it; with neither, the embedded pair.

    target: a local folder in transformers' format, a GGUF file or a folder with one, whose weights are unpacked, or a
        model id on the Hugging Face Hub (``org/model``, ``org/model/file.gguf``).
    draft: one name or several, folders or Hub ids: a draft model, found like a target, and parts trained on this target
        (an EAGLE, Medusa, MTP or parallel head, our own or in a published format). The files show which kind it is.
        Parts in the target's own folder, where the training recipes put them, and the MTP modules in its checkpoint are
        loaded by default.
    device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"auto"``: a GPU if there is one, all GPUs for a pair too large for
        one, else the CPU. ``"spread"`` puts the target's layers on all GPUs, then in main memory, then on disk.
    dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"auto"``: half precision on CUDA, bfloat16 on a CPU that
        multiplies it, and float32 on other CPUs and for GGUF files in few bits, if it fits. Both models get the same
        dtype; a quantised checkpoint keeps its own.
    revision, draft_revision: branch, tag or commit on the Hub. token: for gated or private models; default HF_TOKEN.
    draft_vocabulary: how many frequent tokens the draft model's head keeps (`keep_frequent`); None: all.
    passes: ``"cached"``: compiled ones, where they were compiled on this machine before (`ModelPair.prepare`), else the
        models' own; ``"plain"``: the models' own, whose weights stay where transformers put them; ``"auto"``: compiled
        now, where they were not. Greedy text in float32 is the same by all of them; otherwise they may round
        differently. On a GPU they are recorded as graphs first.
    progress: called before each step with a fraction in [0, 1] and a sentence.

    On a CPU torch's number of threads is set to suit the target's size (`settle_threads`).

    Raises SpecvizError, its `field` being the name of one of these arguments.
    """
    tell = progress or (lambda fraction, sentence: None)
    if passes not in PASSES:
        values = {"name": "passes", "choices": ", ".join(PASSES), "value": quoted(passes)}
        raise SpecvizError("{name} must be one of {choices}, not {value}.", "passes", **values)
    for name, value in (("revision", revision), ("draft_revision", draft_revision)):
        if value is not None:
            require_text(name, value)
    check_default_device()
    place, named_dtype = place_named(device), dtype_named(dtype)
    set_libraries_aside()
    token = token_given(token)
    models: list[PreTrainedModel] = []
    with _letting_go_of(models):
        with quietly(), read_once():
            tell(0.0, Sentence("Looking for the models."))
            draft_model, part_folders = sort_drafts(_several(draft), draft_revision, token)
            sources = find_models(target, draft_model, (revision, draft_revision), token)
            tokenizers, translation = _checked(sources, place, draft_vocabulary, tell)
            if device == "auto":
                place = with_room(place, sources, named_dtype or half_precision(place.device, sources[0].config.dtype))
            chosen_dtype = named_dtype or choose_dtype(place.device, sources)
            check_memory(sources, place, chosen_dtype)
            _load_models(models, sources, place, chosen_dtype, tell)
        columns, draft_name = None, sources[-1].name
        if draft_vocabulary is not None:
            columns = keep_frequent(models[1], tokenizers[1], draft_vocabulary)
            draft_name += f" (FR-Spec {draft_vocabulary})"
        tell(0.85, Sentence("Nearly ready: testing the models once."))
        with refusing_out_of_memory(lambda: _no_room_for_passes(sources[0], place)):
            _try_models(models, sources, place)
            home = EMBEDDED if target is None else pathlib.Path(os.path.expanduser(sources[0].location))
            parts, flaws = load_parts(models[0], home, part_folders)
            with reading(sources[0]):
                measured = _measured(models[0], place, tell)
    pair = ModelPair.of(
        models[0],
        models[1] if len(models) == 2 else None,
        tokenizers[0],
        name="storybook" if target is None else None,
        target_name=sources[0].name,
        draft_name=draft_name,
        stored={source.field: source.stored for source in sources if source.stored is not None},
        translation=translation,
        draft_columns=columns,
        parts=parts,
        flaws=flaws,
        passes=measured,
        recommended=recommended_sampling(generation_settings(sources[0])),
    )
    if passes != "plain" and not place.lent:
        tell(0.95, Sentence("Preparing the passes."))
        prepare_passes(pair, lambda fraction, step: tell(0.95, step), compiling=passes == "auto")
    tell(1.0, Sentence("Ready."))
    return pair


@contextlib.contextmanager
def _letting_go_of(models: list[PreTrainedModel]) -> Iterator[None]:
    """Where anything goes wrong, empties the list and sets torch's number of threads back."""
    threads = torch.get_num_threads()
    try:
        yield
    except BaseException:
        # The traceback keeps frames alive, and through them the models: let go of them by name.
        models.clear()
        torch.set_num_threads(threads)
        release_memory()
        raise


def _several(draft: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None) -> list[str | os.PathLike[str]]:
    """The names, of which a single one needs no list; whoever finds the models refuses what names none."""
    if draft is None:
        return []
    if isinstance(draft, (str, os.PathLike)) or not isinstance(draft, Iterable):
        return [draft]
    return list(draft)


def _try_models(models: Sequence[PreTrainedModel], sources: Sequence[ModelSource], place: Place) -> None:
    """Runs each model once. Now, or else the first visitor would wait for it; on a lent GPU it has been done."""
    if place.device.type == "cpu":
        leave_a_core_free()
    for model, source in zip(models, sources, strict=True):
        if not place.lent:
            with quietly():  # some unpack their weights now
                try_model(model, source)


def _no_room_for_passes(source: ModelSource, place: Place) -> SpecvizError:
    return source.complaint(
        "The weights of {name} fit into the memory of {device}, but leave no room for a pass: choose a smaller model.",
        device=place.device,
    )


def find_models(
    target: Name | None, draft: Name | None, revisions: tuple[str | None, str | None], token: str | None
) -> list[ModelSource]:
    """The target, and the draft model if one was named; without a target, the embedded models."""
    if target is None:
        if draft is not None:
            raise SpecvizError("Name a target too: a draft model cannot run alone.", "target")
        sources = [find_model(EMBEDDED / role, role, None, None) for role in ("target", "draft")]
        for source in sources:
            source.name = f"storybook {source.field}"
        return sources
    sources = [find_model(target, "target", revisions[0], token)]
    if draft is not None:
        sources.append(find_model(draft, "draft", revisions[1], token))
    return sources


def _checked(
    sources: list[ModelSource], place: Place, draft_vocabulary: int | None, tell: Progress
) -> tuple[list[PreTrainedTokenizerBase], Translation | None]:
    """The models' tokenizers, and how to translate between them.

    Raises SpecvizError for models that cannot run at this place, before any weights are read.
    """
    for source in sources:
        check_architecture(source)
        check_quantisation(source, place.device)
    tell(0.1, Sentence("Reading the tokenizer."))
    tokenizers = [load_tokenizer(source) for source in sources]
    translation = _translation(*sources, *tokenizers) if len(sources) == 2 else None
    if draft_vocabulary is not None:
        _check_narrowing(sources, translation)
    return tokenizers, translation


def _check_narrowing(sources: list[ModelSource], translation: Translation | None) -> None:
    """Refuses to narrow the head of a draft model that is not there, or counts in tokens of its own."""
    if len(sources) < 2:
        raise SpecvizError("Name a draft model too: only its vocabulary can be cut.", "draft_vocabulary")
    if translation is not None:
        refusal = sources[1].complaint(
            "{name} has a tokenizer of its own: only a draft model that shares the target's tokenizer can do "
            "with fewer tokens."
        )
        raise refusal.at("draft_vocabulary")


def _measured(target: PreTrainedModel, place: Place, tell: Progress) -> PairPasses:
    """The time of the target's passes here, and how fast its memory is; on a CPU, sets the number of threads that suits
    it first."""
    if place.lent:
        return PairPasses()
    threads = None
    if place.device.type == "cpu":
        tell(0.9, Sentence("Choosing the number of threads."))
        threads = settle_threads(target)
    seconds_by_width = time_passes(target, SHOWN_WIDTHS, budget=0.5)
    memory = None if place.spread else measured_memory(place.device, most_threads(target))
    return PairPasses(seconds_by_width=seconds_by_width, memory=memory, threads=threads)


def _load_models(
    models: list[PreTrainedModel],
    sources: list[ModelSource],
    place: Place,
    dtype: torch.dtype,
    tell: Progress,
) -> None:
    """Appends the models of all sources to `models`."""
    if place.device.type == "cuda":
        # cuDNN's attention would plan anew, for tens of milliseconds, for each length of a growing cache.
        torch.backends.cuda.enable_cudnn_sdp(False)
    target, *drafts = sources
    tell(0.2, _announce(target))
    models.append(load_weights(target, place, dtype, spare=sum(source.weight_bytes(dtype) for source in drafts)))
    for source in drafts:
        tell(0.8, _announce(source))
        models.append(load_weights(source, Place(home_of(models[0])), models[0].dtype))


def _announce(source: ModelSource) -> Sentence:
    name, size = source.name, Bytes(source.weight_bytes(source.config.dtype or torch.float32))
    if source.stored is not None:
        return Sentence("Unpacking {name} ({stored}).", name=name, stored=source.stored)
    here = source.options.get("local_files_only")
    if not size:  # of quantised weights, before they are in a folder
        return (
            Sentence("Loading {name}.", name=name) if here else Sentence("Downloading and loading {name}.", name=name)
        )
    if here:
        return Sentence("Loading {name} ({size}).", name=name, size=size)
    return Sentence("Downloading and loading {name} ({size}).", name=name, size=size)


def _translation(
    target: ModelSource,
    draft: ModelSource,
    target_tokenizer: PreTrainedTokenizerBase,
    draft_tokenizer: PreTrainedTokenizerBase,
) -> Translation | None:
    """Between the draft's tokens and the target's; None if they share a vocabulary.

    Their logit widths may differ either way, since checkpoints pad them. Refuses tokenizers with too little in common.
    """
    if same_vocabulary(target_tokenizer, draft_tokenizer):
        return None
    translation = Translation(target_tokenizer, draft_tokenizer)
    shared, size = len(translation.pairs), translation.draft_size
    if shared < max(1, _LEAST_SHARED * size):
        raise draft.complaint(
            "{name} and {target} have different tokenizers that share only {shared} of the draft model's {size} "
            "tokens, too few to draft with: choose a draft model with a tokenizer closer to the target's.",
            target=target.name,
            shared=shared,
            size=f"{size:,}",
        )
    return translation


def keep_frequent(draft: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int) -> Tensor:
    """Narrows the draft's head to `count` frequent tokens (FR-Spec, Zhao et al. 2025, arXiv 2502.14856).

    Where a vocabulary is large, the head is a large part of the weights that a small model reads in each step: 136 of
    the 494 million of Qwen2.5-0.5B. Tokens that it leaves out get probability 0 from the drafter, so only the target
    writes them, and nothing changes but the acceptance rate and the cost.

    Returns the column of each token's logit, [vocab] int64, `count` for those left out.
    Raises SpecvizError (field ``draft_vocabulary``) for a number out of range, or a head that cannot be narrowed.
    """
    width = logit_width(draft)
    if isinstance(count, bool) or not isinstance(count, int) or not LEAST_FREQUENT <= count < width:
        raise SpecvizError(
            "The draft model's vocabulary can be cut to between {least} and {most} tokens, not to {value}.",
            "draft_vocabulary",
            least=LEAST_FREQUENT,
            most=width - 1,
            value=quoted(count),
        )
    ids = torch.tensor(frequent_ids(tokenizer, count, width))
    narrow_head(draft, ids)
    columns = torch.full((width,), count)
    columns[ids] = torch.arange(count)
    return columns.to(draft.device)


def frequent_ids(tokenizer: PreTrainedTokenizerBase, count: int, width: int) -> list[int]:
    """Ids of the `count` tokens likely to be the most frequent, of those below `width`.

    Tokenizers number their tokens by frequency: BPE in the order of its merges, unigram models by probability. So these
    are the lowest ids; before them single ASCII characters, which SentencePiece puts at its end, and the end token.
    """
    vocabulary = tokenizer.get_vocab()
    singles = [vocabulary[text] for text in (*string.printable, _SPACE) if text in vocabulary]
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ranked = dict.fromkeys((*ends, *singles, *range(width)))
    return [token for token in ranked if token < width][:count]
