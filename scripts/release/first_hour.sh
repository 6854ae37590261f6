#!/usr/bin/env bash
# Follow the README and the pages of "Start" like a new user, with the built wheel.
#
#     scripts/release/first_hour.sh [--without 'make test']... [PAGE]...
#
# Runs every command and every block of these pages in their order, then the other pages that have
# blocks marked for this check. Exits with 1 if one fails or prints something else than its page
# says. Commands with `make` run in a clean clone of the last commit, everything else in an empty
# environment and an empty folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH

git clone --quiet . "$work/clone"
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work/wheel" "$work/clone"
wheel=$(echo "$work"/wheel/*.whl)
# The scripted APIs that the programs of the pages call run in another environment.
"$python" -m venv "$work/apis"
"$work/apis/bin/python" -m pip install --quiet "ctxpipe[testing] @ file://$wheel"
"$python" -m venv "$work/user"
mkdir "$work/project"
cd "$work/clone" # the pages of that commit, even if the work tree changes meanwhile
"$work/apis/bin/python" scripts/release/first_hour.py --wheel "$wheel" --clone "$work/clone" \
	--environment "$work/user" --folder "$work/project" "$@"
