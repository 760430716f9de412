"""POST /mcp: the service for assistants, over the Model Context Protocol (reference 29).

A tool is one or more REST calls (`tools`), made as the caller of the request would make them (`calling`): the same
declarations, handlers, permissions, limits and quotas. Here are only the protocol (`messages`), the schemas of the
tools (`schemas`), and the bound of an answer (`fitting`).
"""
