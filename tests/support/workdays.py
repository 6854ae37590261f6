"""An agent that reads files, turn by turn, and pipelines to replay it through."""

from __future__ import annotations

import json

from ctxpipe import BatchOffload, Compact, ContextPipeline, DirectOffload
from ctxpipe.lab.transcripts import Transcript, parse_transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import Message
from ctxpipe.stages.compact.stage import Breaker, Restore
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import Budget

SYSTEM = "You read files."
TOOLS = [{"name": "Read", "description": "Read a file.", "input_schema": {"type": "object"}}]


def conversation(turns: int = 6, lines: int = 300) -> list[Message]:
    """An agent that thinks, reads a file and says so, in each turn."""
    messages: list[object] = [{"role": "user", "content": "Read every file, please."}]
    for turn in range(turns):
        content = [
            {"type": "thinking", "thinking": f"The next is number {turn}.", "signature": "s"},
            {"type": "text", "text": f"I read file {turn}."},
            {
                "type": "tool_use",
                "id": f"t{turn}",
                "name": "Read",
                "input": {"path": f"src/f{turn}.py"},
            },
        ]
        text = "".join(f"f{turn}_{line} = {line}\n" for line in range(lines))
        result = {"type": "tool_result", "tool_use_id": f"t{turn}", "content": text}
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": [result]},
        ]
    messages.append({"role": "assistant", "content": "All read."})
    return parse_transcript(json.dumps(messages)).messages


def transcript(**sizes: int) -> Transcript:
    body = {"system": SYSTEM, "tools": TOOLS, "messages": conversation(**sizes)}
    return parse_transcript(json.dumps(body), "conversation.json")


def direct(bench: Workbench) -> ContextPipeline:
    return ContextPipeline([DirectOffload(bench.storage)])


def batch(bench: Workbench) -> ContextPipeline:
    return ContextPipeline([BatchOffload(bench.storage, RatioGate(0.5))])


def compact(bench: Workbench) -> ContextPipeline:
    stage = Compact(
        ExtractiveSummarizer(),
        archive=bench.storage,
        restore=Restore(files=bench.files),
        breaker=Breaker(clock=bench.clock),
    )
    return ContextPipeline([stage], budget=Budget(window=12_000))


def none(_: Workbench) -> ContextPipeline:
    return ContextPipeline()
