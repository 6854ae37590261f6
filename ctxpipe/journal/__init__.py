"""The timeline of a conversation, and the journal in which a session stores it."""
