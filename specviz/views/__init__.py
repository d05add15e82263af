"""What is shown, as plain values: JSON messages for the page's elements, charts, text. No torch.

run_messages       a run: what is new, and nothing twice; also what the tabs share: `as_json`, `pair_line`, `title`
lossless_messages  the Lossless tab
compare_messages   the Compare tab
why_messages       the Why it works tab
served_messages    a server's own numbers
advice_text        which drafter to use, in words
answers            what the API answers beside traces
charts             the four live charts
terminal           a run in a terminal
pages              a run, a race, a comparison as one file for a browser
"""
