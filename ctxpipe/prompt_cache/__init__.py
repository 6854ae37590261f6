"""The one model of the provider's prompt cache: what is cached of a prompt, and what is read."""
