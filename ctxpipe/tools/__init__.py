"""Tools for the model: read and search what was offloaded, and ask for a summary."""

from .offloaded import offload_tools
from .tool import Tool, ToolInputError, answer, as_beta_tools

__all__ = ["Tool", "ToolInputError", "answer", "as_beta_tools", "offload_tools"]
