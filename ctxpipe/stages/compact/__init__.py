"""Replace a long history by a summary, and restore the files of the working set."""
