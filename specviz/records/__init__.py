"""What is asked for and what happened, as plain values: no torch, so they cross processes and live in files.

settings: what a run is asked for, in one table
runs: what it did: every round, token, probability, coin and second; the trace file
metrics: from rounds to the numbers people compare
stopwatch: how long a run took, and whether something else held it up
server_metrics: what inference servers say about their own requests, by way of server_formats, _text and _counts
comparison: two runs of one prompt side by side
tables: a run as pandas tables
recordings: runs that come with the repository
presets: prompts that show something on the embedded pair
coins: some of a run's coins, set by hand
links: settings as the query of a link, and back
garbage: work during which none is collected
errors: `SpecvizError`, the one exception written for users
words: the page's texts by language
assets: where the files lie that come with the program
"""
