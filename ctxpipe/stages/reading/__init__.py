"""Pure functions that read a conversation, shared by several stages."""
