"""What is asked for and what happened, as plain values: no torch, so they cross processes and live in files.

settings: what a run is asked for, in one table; some of its coins, set by hand
runs: what it did: every round, token, probability, coin and second; the trace file
rules: the acceptance rules, and what is known of each without its function
trees: drafts as trees: depths, children, outcomes
metrics: from rounds to the numbers people compare; two runs of one prompt side by side
stopwatch: what disturbs work that is timed
tables: a run as pandas tables
recordings: runs that come with the repository
files: from a file's bytes to its text, and what is no text
streams: the standard streams of a command
prompts: those that come with the program, and those of a file
links: settings as the query of a link, and back
errors: `SpecvizError`, the one exception written for users
words: the page's texts by language
assets: where the files lie that come with the program
"""
