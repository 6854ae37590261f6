#!/usr/bin/env bash
# The first hour of a new user, on the built wheel: every command and block of the README and of the
# pages of "Start", in their order, then of pages with blocks that only this can run. Fails where one fails or prints something else than the page says.
#
#     scripts/first_hour.sh [--without 'make test']... [PAGE]...
#
# What `make` does is done in a clean clone of the last commit, all else in an empty environment and folder.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH

git clone --quiet . "$work/clone"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/wheel" "$work/clone"
wheel=$(echo "$work"/wheel/*.whl)
# The scripted APIs that the pages' programs talk to run in an environment of their own.
"$python" -m venv "$work/apis"
"$work/apis/bin/python" -m pip install --quiet "ctxpipe[testing] @ file://$wheel"
"$python" -m venv "$work/user"
mkdir "$work/project"
cd "$work/clone" # the pages of that commit, whatever happens to these meanwhile
"$work/apis/bin/python" scripts/first_hour.py --wheel "$wheel" --clone "$work/clone" \
	--environment "$work/user" --folder "$work/project" "$@"
