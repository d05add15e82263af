"""One forward pass of one model: its tokens, its cache, and how it is made fast.

cached_model: a model reading one text, with a key-value cache that can be rewound
readers: which kind of it reads a text: with running states, over static buffers, or plain
states: running states, which no crop rewinds: kept before a draft, put back afterwards
positions: how many positions a model can tell apart
roles: whose passes they are: the target's, the draft model's, an exit's, a head's
reading_checks: how a model reads, tried once: forwards, in several passes, trees, left early
static_passes: a pass over buffers that stay in place, the form in which it can be compiled or recorded
fast_passes: such buffers, and what runs passes over them
model_twins: twins on the same weights: left early, with a narrow head; weights that a model lets go of
made_drafts: drafts made in one call, where compiled passes allow it
kernels: our own kernels for few rows, in C++
programs: passes as machine code: exported, compiled, kept in a folder, loaded
compiler: processes of low priority that make programs
cuda_graphs: records passes as CUDA graphs and replays them
compiled_layers: decoder layers compiled one kind at a time, for passes that are recorded
layer_calls: how a model calls its layers, taken down
experts: which experts a pass reads, where a model is a mixture of them
joined_weights: linear layers that read the same as one product, their weights side by side
devices: one model on one device or several; time measured around finished work
zero_gpu: whether a GPU is lent for one call at a time
"""
