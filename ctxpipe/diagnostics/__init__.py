"""Observers of a conversation: the prompt cache as a provider sees it, and signs of trouble."""
