"""Gate, I/O, result: the stages, and beside each the function that needs no pipeline."""
