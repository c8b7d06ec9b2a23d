"""One module is one serving engine; its file name is its name. Loaded when asked for."""
