#!/usr/bin/env bash
# NVIDIA Dynamo in front of two replicas, from nothing: installs it, then measures (dynamo_check.py).
#
#   deploy/distributed/dynamo.sh [--streams N] [--only MEASURE ...]
#
# PINION names the program to test.
set -euo pipefail
source "$(dirname "$(readlink -f "$0")")/recipe.sh"
# What frontend and worker import, without what Dynamo's other parts want: one of those packages must be compiled.
install dynamo-1.6.1 --no-deps --requirement "$HERE/dynamo.lock"
exec "$VENV/bin/python" "$HERE/dynamo_check.py" --pinion "$(pinion_program)" "$@"
