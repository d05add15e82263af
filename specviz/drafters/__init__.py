"""The ways to draft. Register new drafters here, in `CLASSES`: this module alone loads no torch.

base           the protocol: propose a draft, hear of the verdict; the facts that each class states
registry       from names to classes; the default drafter of a pair
choosers       from a model's probabilities to tokens: top choices or draws
growing        the choosers' decisions as functions of tensors, which a GPU can record
ahead          how drafters read and draft on a GPU, from a text whose end the host does not know
stepwise       drafting token by token or level by level, for drafters with probabilities
draft_model    a second, smaller model, with the same tokenizer or another
self_drafting  the target's cheaper versions of itself: its first layers, or all of it with weights in few bits
heads          all trained parts that draft from the target's hidden states; each part says where its rows come from
copying        what followed the text's end at its previous occurrence, or most often
hybrid         copying where that promises most of a draft, elsewhere a model
lookahead      the target's own guesses from earlier passes
"""

#: By name, the module in this folder and the class that drafts.
CLASSES = {
    "draft_model": "draft_model.DraftModel",
    "prompt_lookup": "copying.PromptLookup",
    "suffix": "copying.Suffix",
    "hybrid": "hybrid.Hybrid",
    "lookahead": "lookahead.Lookahead",
    "early_exit": "self_drafting.EarlyExit",
    "quantised_self": "self_drafting.QuantisedSelf",
    "medusa": "heads.Medusa",
    "eagle": "heads.Eagle",
    "mtp": "heads.Mtp",
    "parallel": "heads.Parallel",
}

#: The names of all drafters; None stands for plain decoding.
DRAFTERS = tuple(CLASSES)
