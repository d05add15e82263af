"""Commands about the page that no visitor sees; most need playwright and a Chromium.

chromium    a headless browser
page_cost   what watching costs a run
start_up    how soon after the command there is something to see
page_speed  how fast the live view answers with a long run in it
waiting     how long visitors wait when several press at once
picture     a plotly figure as a file
recorder    records the runs that come with the page anew
pictures    takes the pictures of the README and of docs/ anew
"""
