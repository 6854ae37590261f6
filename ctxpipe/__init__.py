"""Keep the context of an LLM agent small, cheap and useful."""

__version__ = "0.1.0"
