"""An inference server that runs elsewhere: asked, watched round by round, timed and put to the test. No torch.

address: which servers may be asked, and where a name leads
connection: requests and streams, bounded, with every failure as a sentence
engine, engines: how each engine is asked, and what it says of itself and of its drafts
answers: a request, and its answer as it comes
counters: what a server counts over all requests, before and after
rounds: its rounds, as far as they can be known
turns: some answers of it, so many at a time, on the clock
pace, speed: how fast it was, as values; measuring it, in turns with itself without speculation, and under load
references: what samples are judged by
explanations: what may have been done to a distribution before it was drawn from
lossless: whether its samples are its model's
server: `Server`, the door to all of it
"""
