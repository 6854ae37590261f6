#!/bin/sh
# Claude Code with the hook: install it into a project, run it as Claude Code does, take it out.
#
#     sh examples/adapters/claude_code.sh
set -e
project=$(mktemp -d)
python=${PYTHON:-python3}
"$python" -m ctxpipe claude-code install --settings "$project/.claude/settings.json" --min-chars 1000
result=$("$python" -c 'print("a long line of output\\n" * 100)')
printf '{"session_id": "job-42", "tool_use_id": "toolu_1", "cwd": "%s", "tool_name": "Bash",
  "tool_response": {"stdout": "%s"}}' "$project" "$result" |
    "$python" -m ctxpipe claude-code hook --min-chars 1000
echo
"$python" -m ctxpipe claude-code uninstall --settings "$project/.claude/settings.json"
