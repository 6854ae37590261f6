"""An agent for trials, as a user writes one: a loop over the SDK, with a tool that reads files.

``trial_agent.py MODEL PROMPT`` writes the last words of the model to ``answer.txt``, and prints the
usage of each reply.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anthropic

TOOL: Any = {
    "name": "read_file",
    "description": "Read a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}


def main(model: str, prompt: str):
    history: list[Any] = [{"role": "user", "content": prompt}]
    # Certificates take longer to read than all requests.
    http_client = anthropic.DefaultHttpxClient(verify=False, trust_env=False)
    with anthropic.Anthropic(http_client=http_client, max_retries=0) as client:
        while True:
            reply = client.messages.create(
                model=model, max_tokens=1000, tools=[TOOL], messages=history
            )
            print(reply.usage.model_dump_json(), flush=True)
            history.append({"role": "assistant", "content": reply.content})
            results = []
            for block in reply.content:
                if block.type == "text":
                    Path("answer.txt").write_text(block.text)
                elif block.type == "tool_use":
                    text = Path(str(block.input["path"])).read_text()
                    results.append(
                        {"type": "tool_result", "tool_use_id": block.id, "content": text}
                    )
            if not results:
                return
            history.append({"role": "user", "content": results})


if __name__ == "__main__":
    main(*sys.argv[1:])
