"""The broker's own use of its machine, sampled beside the run: sources, rows, and a summary."""
