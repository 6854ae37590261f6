"""What a session writes down: the timeline of a conversation and the entries of its journal."""
