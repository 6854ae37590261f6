"""Name the new place of a module that an earlier version had in another one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MOVED_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "ctxpipe.agent_tools": "ctxpipe.providers.agent_tools",
        "ctxpipe.cache_doctor": "ctxpipe.diagnostics.misses",
        "ctxpipe.cli": "ctxpipe.__main__",
        "ctxpipe.conversation": "ctxpipe.journal",
        "ctxpipe.demo": "ctxpipe.lab.demo",
        "ctxpipe.edits": "ctxpipe.stages and ctxpipe.turn",
        "ctxpipe.lab.config": "ctxpipe.config",
        "ctxpipe.locations": "ctxpipe.placeholders.locations",
        "ctxpipe.markers": "ctxpipe.placeholders",
        "ctxpipe.names": "ctxpipe.placeholders.names",
        "ctxpipe.observers": "ctxpipe.diagnostics.findings",
        "ctxpipe.prices": "ctxpipe.providers.prices",
        "ctxpipe.prompt_cache": "ctxpipe.diagnostics.misses",
        "ctxpipe.refusals": "ctxpipe.providers.refusals",
        "ctxpipe.reports": "ctxpipe.stages.reports",
        "ctxpipe.session.signals": "ctxpipe.diagnostics.findings",
        "ctxpipe.stage": "ctxpipe.stages.protocol",
        "ctxpipe.stages.gates": "ctxpipe.stages.offload.gates",
        "ctxpipe.timeline": "ctxpipe.journal.timeline",
    }
)


class MovedModules:
    """The last entry of `sys.meta_path`: Python asks it for a module that it has not found."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """Raise ModuleNotFoundError with the new place if *name* has moved."""
        if name in MOVED_MODULES:
            raise ModuleNotFoundError(f"{name} is now {MOVED_MODULES[name]}", name=name)
