"""Work that must not hold the event loop: in threads, in processes, and in pieces."""
