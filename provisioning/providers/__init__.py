"""One module is one provider; its file name is its name."""
