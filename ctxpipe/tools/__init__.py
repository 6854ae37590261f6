"""Tools for the model: read and search what was offloaded."""

from .offloaded import offload_tools
from .tool import Tool, ToolInputError, answer, as_beta_tools

__all__ = ["Tool", "ToolInputError", "answer", "as_beta_tools", "offload_tools"]
