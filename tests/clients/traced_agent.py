"""An agent of Pydantic AI whose spans are written to a file, by an exporter of OpenTelemetry.

    python traced_agent.py TASK FILE [otlp|console]

Its model is at ANTHROPIC_BASE_URL. The file is written in one of the two forms: OTLP in JSON, as a
collector writes it, or the form of the console exporter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings

MODEL = "anthropic:claude-opus-5"


def main(task: str, path: str, form: str = "otlp") -> None:
    provider = TracerProvider()
    with open(path, "w", encoding="utf-8") as file:
        if form == "otlp":
            module: Any = import_module("opentelemetry.exporter.otlp.json.file.trace_exporter")
            exporter = module.FileSpanExporter(stream=file)
        else:
            exporter = ConsoleSpanExporter(out=file)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        settings = InstrumentationSettings(tracer_provider=provider)
        traced = Instrumentation(settings)
        agent = Agent(MODEL, name="looker", instructions="Be brief.", capabilities=[traced])

        @agent.tool_plain
        def bash(command: str) -> str:
            """Run a command."""
            return subprocess.run(
                ["bash", "-c", command], check=False, capture_output=True, text=True
            ).stdout

        print(agent.run_sync(task).output)
        provider.shutdown()


if __name__ == "__main__":
    assert os.environ.get("ANTHROPIC_BASE_URL"), "the scripted API is at ANTHROPIC_BASE_URL"
    main(*sys.argv[1:])
