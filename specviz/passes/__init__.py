"""One forward pass of one model: what it reads, what it keeps, and how it is made fast.

cached_model: a model reading one text, with a key-value cache that can be rewound
tree_trial: tries once how a model reads: forwards, in several passes, trees, left early
static_passes: a pass over buffers that stay in place, the form in which it can be compiled or recorded
grouped_attention: heads that share keys and values, without repeating those
few_rows: a model's twin on our own kernels, whose passes cost little more over several tokens than over one
released_weights: weights that only the kernels read: let go of, and unpacked again when something else reads them
quantisation: weights in few bits, and a model's twin with rounded ones
narrow_head: an output head with rows for some of the tokens only
kernel_library: builds our C++ and makes the kernels known to torch: few_rows.cpp over lanes.h, draft_chain.cpp and
  judged_chain.cpp over choices.h
row_trial: tries whether a token's results depend on what else is in its pass
twins: copies of a model on the same weights
static_eagle: the same form of EAGLE and MTP heads, and a head reading one text
static_parallel: that of the parallel head
compiler: compiles passes to machine code, in processes of low priority, and keeps the programs
draft_chains: whole chains drafted by a compiled model in one call
judged_chains: whole chains judged in one call
cuda_graphs: records passes as CUDA graphs and replays them
trained_heads: Medusa heads, EAGLE and MTP heads, and their files
mtp_layers: the multi-token-prediction modules of a checkpoint, each reading one text
parallel_head: a head that drafts all depths in one pass, with masks
dflash: published drafters of this kind
stored_weights: a loaded model's weights as its files have them
early_exits: a model that ends after its first layers
several_devices: one model spread over devices or sharded over processes
torchrun: the processes that torchrun started beside this one
zero_gpu: whether GPUs are lent by the call
clock: measures time around finished work
"""
