"""How many positions a model can tell apart, and where it begins to read in another way."""

from transformers import PreTrainedModel


def position_limit(model: PreTrainedModel) -> int | None:
    """How many positions the model can tell apart, reading all of them in one way; None if unlimited."""
    config = model.config.get_text_config()
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len")]
    # RoBERTa's positions begin behind that of padding.
    limits += [
        part.num_embeddings - part.padding_idx - 1
        for name, part in model.named_modules()
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None
    ]
    limits += [rope_switch(model), mask_switch(model)]
    return min((limit for limit in limits if limit and limit > 0), default=None)


def rope_switch(model: PreTrainedModel) -> int | None:
    """After how many tokens the model's rotary factors change (LongRoPE); None if they never do.

    All that was read before would then have to be read anew, as `generate` does.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # some have one for each kind of layer
    switches = [kind.get("original_max_position_embeddings") for kind in kinds if kind.get("rope_type") == "longrope"]
    return min(filter(None, switches), default=None)


def mask_switch(model: PreTrainedModel) -> int | None:
    """After how many tokens the model hides some by their rank among all of a pass, those to come included (Doge); None
    if it never does.

    A token then sees others depending on those in the same pass, and `generate` with a cache differs from one without.
    """
    return getattr(model.config.get_text_config(), "keep_window_size", None)
