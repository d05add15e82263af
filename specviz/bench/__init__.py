"""The benchmark: every way to decode, timed in turn on the same prompts, and the figures that follow.

Values; these load no torch
    contestants      a contestant, its turns and runs, its figures, the speedup with its interval
    contest          what was measured of several of them on some prompts so far, as rows
    served           servers as contestants: which ones, what runs there, an answer of theirs
    vary             settings at several values
    advice           which drafter to use; the flags of servers

Measuring
    turns            the one way to measure speed: contestants take turns over parts of a text
    contesting       how contestants decode, by the engine, transformers or a server, and all of them on prompts in turn
    benchmark        many settings and contestants on one pair
    duel             a run and its plain rival: the race, and the speedup of a run
    advising         every drafter in the time available, then the fastest again; the trial after loading
    forced           speculation at any acceptance rate: an oracle in the draft model's place
    pass_times       T(K), the time of a pass over K tokens, and T(B, K), with B requests
    memory_need      the memory of a pair, reckoned before it is loaded
    machine          this machine: its facts, its load, and the best that it can do

Checking
    two_texts        the judge of two texts that should be equal, of any engines: a near-tie, or a fault
    equal_texts      greedy texts are plain decoding's: before any time, and at every length
    wiring           trained parts, read as their files say and in neighbouring ways
    check            everything else about a pair: distributions, trees, passes, memory, a race

Reporting
    report           rows, conclusions from them, the JSON file, and all of it as text
"""
