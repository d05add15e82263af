"""The tabs, a module each: what it lays out, the actions that its buttons start, and the messages that come of them.

generate  a run, live
race      plain and speculative decoding measured in turn
compare   several ways side by side
why       what passes cost, and what limits the visitors' runs
lossless  does the text follow the target's distribution?
server    an inference server: watched, measured, tested; and its own numbers, pasted
models    the pair in use, a check of it, and other pairs; what it says of the pair in use: pair_in_use
"""
