"""A pair: two models found, checked, loaded and prepared on this machine.

pair: `ModelPair`, what was loaded, with `PairPasses` beside it: what was measured and prepared; reads prompts
loading: `load_pair`, from names to a pair
sources: where a model comes from (folder, GGUF file or Hub), its configuration and tokenizer
folders: what lies in a folder that was named as a model
architectures: whether a model can run here, by its configuration alone
trials: whether it can, by a few tokens
gguf_files: finding GGUF files and reading their headers
trained_parts: what was named to draft with, and the trained parts among it
mtp_modules: multi-token-prediction modules that lie in a target's own checkpoint
weights: whether a model's weights fit, and reading them
placement: devices, dtypes and the memory they have
pass_timer: how long a pass takes, and with how many threads
preparation: compiles a pair's passes or records them as CUDA graphs, and checks them before any run uses them
quantised_target: the target in few bits, made when it first drafts for itself
refusals: turns what the libraries raise into one sentence a user can act on
tokenizer_files: whether a tokenizer reads and writes, and why it cannot
token_texts: from token ids to text, token by token
frequent_tokens: a draft model that proposes frequent tokens only
vocabularies: two tokenizers side by side, for a draft model with a vocabulary of its own
catalog: well-known pairs on the Hub and their sizes
"""
