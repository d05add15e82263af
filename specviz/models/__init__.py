"""A pair: two models found, checked, loaded and prepared on this machine.

pair: `ModelPair`, the loaded models; reads prompts
pair_passes: `PairPasses`, their times and prepared passes; which passes a pair has, and making them
loading: `load_pair`, from names to a pair; a draft model that proposes frequent tokens only
sources: where a model comes from (folder, GGUF file or Hub), its configuration, tokenizer and recommended sampling
hub: the Hub's names for a model, and asking the Hub for it
checks: whether a model can run here, by its configuration and by a few tokens
gguf_files: finding GGUF files and reading their headers
trained_parts: sorts the names to draft with, and loads the trained parts among them
weights: whether a model's weights fit, and reading them
placement: devices, dtypes and the memory they have
pass_timer: how long a pass takes, and with how many threads
memory_share: how near a target pass comes to the memory's bandwidth
preparation: compiles a pair's passes or records them as CUDA graphs
quantised_targets: the target in few bits, which drafts for itself
pass_checks: makes one model's fast passes, and refuses those that are wrong, slow or too large
refusals: turns the libraries' errors, and a tokenizer's that cannot be used, into one sentence a user can act on
token_texts: from token ids to text, token by token
vocabularies: two tokenizers side by side, for a draft model with a vocabulary of its own
catalog: well-known pairs and published parts on the Hub, and their sizes
"""
