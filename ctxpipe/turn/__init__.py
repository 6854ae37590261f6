"""One turn, a file for each step: align, repair, stages, finish, commit."""
