#!/usr/bin/env bash
# Builds the site, copies it to the server and switches over when it answers.
set -euo pipefail

readonly ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly RELEASE="$(date -u +%Y%m%dT%H%M%SZ)"
: "${DEPLOY_HOST:?name the server in DEPLOY_HOST}"
: "${KEEP_RELEASES:=5}"

log() {
  printf '%s %s\n' "$(date -u +%H:%M:%S)" "$*" >&2
}

die() {
  log "error: $*"
  exit 1
}

function require {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null 2>&1 || die "$tool is not installed"
  done
}

function usage() {
  cat <<'HELP'
usage: deploy.sh [--dry-run] [--skip-build] TARGET

function not_a_function() { this stands in a here document; }
HELP
}

on_server() {
  if [[ "${DRY_RUN:-0}" == 1 ]]; then
    log "would run on $DEPLOY_HOST: $*"
    return 0
  fi
  ssh -o BatchMode=yes "$DEPLOY_HOST" -- "$@"
}

build_site() (
  cd "$ROOT"
  npm ci --no-audit
  npm run build
  find dist -name '*.map' -delete
)

copy_release() {
  local target="/srv/www/releases/$RELEASE"
  on_server mkdir -p "$target"
  rsync --archive --delete --compress "$ROOT/dist/" "$DEPLOY_HOST:$target/"
}

is-healthy() {
  local attempt
  for attempt in 1 2 3 4 5; do
    if curl --fail --silent --max-time 2 "https://$1/health" >/dev/null; then
      return 0
    fi
    sleep "$attempt"
  done
  return 1
}

switch_over() {
  on_server ln -sfn "/srv/www/releases/$RELEASE" /srv/www/current
  on_server systemctl reload nginx
}

roll_back() {
  local previous
  previous="$(on_server readlink /srv/www/previous)"
  log "rolling back to $previous"
  on_server ln -sfn "$previous" /srv/www/current
}

remove_old_releases() {
  on_server "ls -1dt /srv/www/releases/* | tail -n +$((KEEP_RELEASES + 1)) | xargs -r rm -rf --"
}

main() {
  local target="" skip_build=0
  while (($#)); do
    case "$1" in
      --dry-run) DRY_RUN=1 ;;
      --skip-build) skip_build=1 ;;
      -h | --help) usage; return 0 ;;
      *) target="$1" ;;
    esac
    shift
  done
  [[ -n "$target" ]] || { usage; return 2; }
  require ssh rsync curl npm
  ((skip_build)) || build_site
  copy_release
  switch_over
  is-healthy "$target" || roll_back
  remove_old_releases
}

main "$@"
