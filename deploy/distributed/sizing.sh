#!/usr/bin/env bash
# A sizing sheet by simulation, as a table in Markdown (sizing.py): arrivals × lengths × replicas × routing → TTFT, TPOT, KV hit.
#
#   deploy/distributed/sizing.sh [--rates R,..] [--lengths IN:OUT,..] [--replicas N,..] [--routing NAME,..]
#       [--slo ttft=MS,tpot=MS] [--requests N] [--out FILE] [-- FLAGS of `pinion bench scheduler --simulate`]
#
# PINION names the program; pinion-bench stands beside it.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/recipe.sh"
exec "$PYTHON" "$HERE/sizing.py" --pinion "$(pinion_program)" "$@"
