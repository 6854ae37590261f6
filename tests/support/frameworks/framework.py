"""Base of the drivers of frameworks: the section of the page, and a run of the agent."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from adapter_contract import Done
from mounts import result
from places import ROOT
from pydantic import BaseModel

PAGE = ROOT / "docs" / "adapters" / "openai.md"
SECTION = "\n## Frameworks on the openai SDK\n"


class Report(BaseModel):
    """Structured output of an agent."""

    text: str


def look(number: int) -> str:
    """Look at what has a number.

    Args:
        number: The number of what is looked at.
    """
    return result(number)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Job of an agent.

    With a *history* it goes on. It may have an *output* with fields, and a *helper*, an agent with
    the same tools to which it hands over.
    """

    task: str = "go"
    history: Any = None
    stream: bool = False
    tools: Sequence[Callable[..., Any]] = (look,)
    output: type[BaseModel] | None = None
    helper: bool = False


class Framework(ABC):
    """Driver of a framework: it runs an agent on the models that its section of the page makes.

    - The model says an output with fields as a text, or by the tool *structured*; with *asks_again*
      that is a request of its own.
    - *hands_over* is the tool by which the model gives the work to the helper, with the arguments
      *handed*; *after* is what the agents then say.
    - *renamed* is, by API, a field of the items to which the framework gives another value in its
      next run.
    - Without *keeps_thoughts* it sends no reasoning again, and without *streams_usage* it does not
      ask for the usage of a stream.
    """

    package: ClassVar[str]
    name: ClassVar[str]  # heading of its section, which makes a model for each of the *apis*
    apis: ClassVar[tuple[str, ...]] = ("chat",)
    structured: ClassVar[str] = ""
    asks_again: ClassVar[bool] = False
    hands_over: ClassVar[str]
    handed: ClassVar[dict[str, Any]] = {}
    after: ClassVar[tuple[str, ...]] = ("Done.",)
    renamed: ClassVar[dict[str, str]] = {}
    keeps_thoughts: ClassVar[bool] = True
    streams_usage: ClassVar[bool] = True

    @abstractmethod
    async def run(self, model: Any, job: Job) -> Done:
        """Run an agent until it calls nothing."""


def run_page_section(name: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the program in the page's section of the framework *name*, and return its *names*.

    It is the first of the section: it makes the models. A second one runs an agent.
    """
    sections = PAGE.read_text("utf-8").split(SECTION)[1].split("\n### ")
    [section] = [section for section in sections if section.startswith(f"{name}\n")]
    program, *_ = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    exec(program, names)  # noqa: S102  the page's
    return names
