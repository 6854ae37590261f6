"""Pure functions that read a conversation, shared by several stages, a module for each question."""
