"""The MCP face, the worker and its workflows, the state, and the command line. Nobody imports it."""
