"""The Gradio page. `page` composes it: a head, the controls, and a tab a module; a tab is added there, in `TABS`.

page             the page in every language, with its head; `serve` starts it
controls         the controls of a run, and the buttons that start and stop one
applying         settings that come from a link, or from another part of the page

desk             what a tab is built at, and hands over: the actions that its buttons start; connects them
tabs/            the tabs, a module each
contest          what Compare compares, how far it is, and what came of it
advice           whether it pays, and which drafter to use, on the Compare tab
routes/          what the server answers beside Gradio, a module each
api/             the same for programs: functions of Gradio, tools of an MCP server

orders           what a visitor asks for: a form's values become a run's settings, once
ways             the drafters and rules to choose from
lending          GPUs that are lent by the call: which pairs ask for one, for how long, what refusals mean
runner           carries orders out, in batches; line: one for the models, a place for each visitor, and Stop
supposing        what a round would have been, while the models that made it are in memory
runs             runs as the page shows them, live and over, and what is kept for whom; downloads: their files
device           where: in one thread or on a lent GPU; the pairs in memory, and the thread that prepares their passes
deployment       settings of the deployment, from environment variables
gradio_files     the folder in which Gradio keeps files; here it is settled, before Gradio is imported
components       the page's own components, around the elements of assets/web, and the files that they need
"""

from specviz.ui import gradio_files as gradio_files
