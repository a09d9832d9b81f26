#!/usr/bin/env bash
# The one command: sets up libtorch, builds, and serves on loopback.
#
#   deploy/launch.sh                         serve the demo model on http://127.0.0.1:8000
#   deploy/launch.sh --model DIR [flags]     serve a Hugging Face folder; flags as in docs/CONFIGURATION.md
#   deploy/launch.sh --setup-only            set up and build, then stop
#
# PINION_CACHE and PINION_PYTHON say where downloads are kept and whose pip is used: deploy/setup.sh.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"

case "${1:-}" in
-h | --help)
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

setup
cd "$ROOT"
say "building the release binaries (the first build takes several minutes)"
programs=(launcher hub frontend tokenizer engine detokenizer doctor terminal)
cargo build --release --locked "${programs[@]/#/--package=pinion-}"

if [ "${1:-}" = --setup-only ]; then
    say "set up; serve with: deploy/launch.sh"
    exit 0
fi

model_named=${PINION_MODEL:+yes}${PINION_CONFIG:+yes}
for flag in "$@"; do
    case $flag in --model | --model=* | --config | --config=*) model_named=yes ;; esac
done
# `launch.sh DIR`, as with `pinion serve DIR`.
case "${1:-}" in [!-]*) model_named=yes ;; esac
if [ -z "$model_named" ]; then
    set -- --model "$ROOT/deploy/demo-model" "$@"
fi
exec "${CARGO_TARGET_DIR:-$ROOT/target}/release/pinion" serve "$@"
