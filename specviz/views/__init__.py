"""Views as plain values: JSON messages for the page's elements, charts, text. No torch.

run_messages       a run: what is new, and nothing twice; also what the tabs share: `message`
labels             drafters, contestants, runs and pairs in words
charts             the values of the four live charts
remarks            what to know of a run's text: it loops, or acceptance falls along it
lossless_messages  the Lossless tab
tab_messages       the tabs Compare and Why it works
server_messages    a server that runs elsewhere; server_text: the same for a terminal
served_messages    a server's own numbers; served_diagnosis: what is likely wrong with them
answers            the API's answers other than traces
pages              a run, a race, a comparison as one file for a browser
static_site        the page as a folder that needs no server
quiz               the five questions: the rounds and figures that they are about
grades             students' homework: for a terminal, a class, and tools
terminal           a run in a terminal, and where two texts part; there and on the page, which drafter to use
"""
