"""The tools an MCP client sees, by subject; each is a few lines over the state."""
