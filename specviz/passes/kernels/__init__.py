"""Our own kernels for few rows, in C++: built once a machine, called from Python and from compiled programs.

few_rows: a model's twin on these kernels, whose passes cost little more over several tokens than over one
packed_linear: its linear layers, and how their weights are packed; huge_pages: the memory that these lie in
few_bits: weights in 8 or 4 bits, and models of such weights
grids: codes of 8 or 4 bits that stand for the weights of a file in few bits, to the bit
opened: compiled programs as C++ opens them
chains: whole drafts made in one call (chains.cpp)
judging: whole drafts judged in one call (judging.cpp)
rounds: a run's rounds, each in one call (rounds.cpp)
operations: the kernels as operations of torch
joining: operations that are put together before a pass is compiled
kernel_library: builds the C++ (cpp) and loads it
"""
