"""What the page's server answers beside Gradio, a module each.

web_files  the elements' scripts and styles, and the texts that they say
qr         links as QR codes
lessons    a class's answers to the five questions
notes      a lesson's notes, for the teacher's own screen
wall       a class's guesses before a coin falls
preview    what other sites show of a link to the page
streams    event streams, which no proxy is to hold back
"""
