"""The page for programs: functions of Gradio, tools of an MCP server.

endpoints  what there is to call, what it takes and what it answers
calls      endpoints as functions of Gradio; what a call is refused for
"""
