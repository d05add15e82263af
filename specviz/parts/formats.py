"""In which published format a part is, by its config.json and the names and shapes of its tensors.

Shapes come first and labels second: published heads call themselves ``LlamaForCausalLM``, or have no label at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specviz.parts.dflash import DFlashHead
from specviz.parts.dspark import DFlash2Head, DominoHead, DSparkHead
from specviz.parts.eagle import Eagle1Head, Eagle3Head, PEagleHead
from specviz.parts.gemma_assistant import GemmaAssistant
from specviz.parts.medusa import MlpSpeculator, PublishedMedusa
from specviz.parts.mtp import MtpFile, MtpModules
from specviz.parts.part_files import PartFiles
from specviz.parts.published import PublishedPart


@dataclass(frozen=True)
class PartFormat:
    """A form in which trained parts are published."""

    name: str  # for people
    fits: Callable[[PartFiles], bool]
    part: type[PublishedPart | MtpModules] | None = None  # which reads it; None: it does not run here
    refusal: str | None = None  # what to do instead, where that is known: a sentence about its {folder}

    @property
    def drafter(self) -> str | None:
        return None if self.part is None else self.part.kind


def _read(part: type[PublishedPart | MtpModules], fits: Callable[[PartFiles], bool]) -> PartFormat:
    return PartFormat(part.method, fits, part)


def _refused(template: str, name: str, fits: Callable[[PartFiles], bool]) -> PartFormat:
    return PartFormat(name, fits, refusal=template)


def recognise(files: PartFiles) -> PartFormat | None:
    """The format of the part in a folder; None for a model, or nothing that is known."""
    return next((form for form in FORMATS if form.fits(files)), None)


def _labels(files: PartFiles) -> Iterator[str]:
    """What a configuration calls itself."""
    settings = files.settings
    classes = settings.get("architectures")
    for label in (
        *(classes if isinstance(classes, list) else ()),
        settings.get("model_type"),
        settings.get("speculators_model_type"),
        settings.get("spd_type"),
        files.setting("projector_type"),
    ):
        if isinstance(label, str):
            yield label.lower()


def _called(*words: str) -> Callable[[PartFiles], bool]:
    """Whether a label contains one of these words."""
    return lambda files: any(word in label for label in _labels(files) for word in words)


def _is(*labels: str) -> Callable[[PartFiles], bool]:
    """Whether a label is one of these."""
    return lambda files: any(label in labels for label in _labels(files))


def _holds(*endings: str) -> Callable[[PartFiles], bool]:
    """Whether, for each of these endings, a tensor's name is that or ends in it after a dot."""
    return lambda files: all(any(f".{name}".endswith(f".{ending}") for name in files.shapes) for ending in endings)


def _set(*names: str) -> Callable[[PartFiles], bool]:
    """Whether one of these settings is there."""
    return lambda files: files.setting(*names) is not None


def _either(*tests: Callable[[PartFiles], bool]) -> Callable[[PartFiles], bool]:
    return lambda files: any(test(files) for test in tests)


def _shape(files: PartFiles, name: str) -> tuple[int, ...]:
    """Of the tensor of a head that has this name, or this name after ``model.``; empty if there is none."""
    return next((files.shapes[full] for full in (name, f"model.{name}") if full in files.shapes), ())


def _is_eagle3(files: PartFiles) -> bool:
    """Attention reads embedding and state side by side, twice as wide as what it writes; or a label says so."""
    for layer in ("midlayer.", "layers.0."):
        read, written = (_shape(files, f"{layer}self_attn.{name}_proj.weight") for name in "qo")
        if len(read) == len(written) == 2 and read[1] == 2 * written[0]:
            return True
    return _either(_called("eagle3"), _set("draft_vocab_size"))(files) and not _joins_two(files)


def _joins_two(files: PartFiles) -> bool:
    """A layer that joins the embedding and one state, each as wide as itself."""
    shape = _shape(files, "fc.weight")
    return len(shape) == 2 and shape[1] == 2 * shape[0]


#: In the order of trial: what is special before what it would be taken for.
FORMATS: tuple[PartFormat, ...] = (
    # As published, their projection lies in a file of its own, which is needed only to read the target's states.
    _refused(
        "{folder} holds a PARD-2 draft model in its training form, with the projection of its target's hidden "
        "states among its weights (target_proj): name the folder that was made from it for drafting (pard_model).",
        "PARD-2 in training",
        _holds("target_proj.weight"),
    ),
    PartFormat("Hydra", _either(_set("hydra_num_heads"), _holds("hydra_lm_head.0.weight"))),
    _refused(
        "{folder} holds an EAGLE-3 head with further heads for parallel drafting, which are not supported: "
        "export it without them (parallel_draft_step 1), or name another part.",
        "EAGLE-3 with parallel heads",
        _holds("parallel_draft_heads.0.medusa_layers.0.linear.weight"),
    ),
    _read(
        PublishedMedusa,
        _either(
            _set("medusa_num_heads"),
            _called("medusa"),
            _holds("0.0.linear.weight"),
            _holds("blocks.0.layers.0.weight", "lm_heads.0.weight"),
        ),
    ),
    _read(
        MlpSpeculator,
        _either(_called("mlp_speculator", "mlpspeculator"), _holds("emb.0.weight", "proj.0.weight", "head.0.weight")),
    ),
    _read(
        GemmaAssistant,
        _either(
            _called("gemma4_assistant", "gemma4_unified_assistant"),
            _holds("pre_projection.weight", "post_projection.weight"),
        ),
    ),
    _read(DominoHead, _either(_called("domino"), _holds("prefix_gru.weight_ih_l0"))),
    _read(DFlash2Head, _either(_called("dflash2"), _holds("candidate_selector.hidden_projection.weight"))),
    PartFormat("LiLiCorr", _either(_called("lilicorr"), _set("lilicorr_enabled"))),
    PartFormat("DFlare", _either(_called("dflare"), _holds("layer_fusion_weights"))),
    PartFormat(
        "DSpark on Gemma's layers",
        _either(_called("gemma4dspark"), _holds("markov_w1.weight", "pre_feedforward_layernorm.weight")),
    ),
    PartFormat("DSpark in its target", _set("dspark_target_layer_ids")),
    _read(DSparkHead, _either(_called("dspark"), _holds("markov_w1.weight"), _holds("markov_w2.weight"))),
    _read(
        DFlashHead,
        _either(
            _set("dflash_config"),
            _called("dflash", "muse_glimmer_assistant"),
            lambda files: {"fc.weight", "hidden_norm.weight"} <= files.shapes.keys(),
        ),
    ),
    PartFormat(
        "EAGLE-3 with latent attention",
        lambda files: (
            _called("eagle3deepseek")(files)
            or (bool(_shape(files, "fc.weight")) and _holds("self_attn.kv_a_proj_with_mqa.weight")(files))
        ),
    ),
    PartFormat(
        "EAGLE-3 on Gemma's layers",
        lambda files: (
            _called("gemma4eagle3")(files) or (_is_eagle3(files) and _holds("pre_feedforward_layernorm.weight")(files))
        ),
    ),
    _read(PEagleHead, _either(_called("peagle"), _holds("mask_hidden"))),
    _read(Eagle3Head, _is_eagle3),
    _read(Eagle1Head, _either(_joins_two, _is("eagle", "eaglemodel", "eaglellamaforcausallm"))),
    _read(
        MtpFile,
        _either(_is("mtp", "mtpdraftmodel"), lambda files: "mtp_layers.0.input_proj.weight" in files.shapes),
    ),
    _read(MtpModules, _is("gguf_mtp")),
    _refused(
        "{folder} holds multi-token-prediction modules that were taken out of a checkpoint: name that checkpoint "
        "as the target, and specviz reads its modules too.",
        "MTP modules alone",
        _either(
            _called("nextn"),
            # Names as in a target's checkpoint, and nothing else of it.
            lambda files: bool(files.shapes) and all(name.startswith(("mtp.", "model.mtp")) for name in files.shapes),
        ),
    ),
)
