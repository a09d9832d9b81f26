#!/usr/bin/env bash
# Prometheus's own linter on /metrics of a running server: every complaint fails, but two. vLLM's names have a colon, which
# promtool reserves for recording rules; dashboards and routers want them as they are. And two names end in _total, which
# it keeps for counters: the gauge pinion_kv_blocks_total beside pinion_kv_blocks_used, and a histogram of vLLM's.
#
#   benchmarks/checks/promtool.sh [http://HOST:PORT]     default http://127.0.0.1:8000
#   PROMTOOL=/path/to/promtool                           default: the one in PATH
#
# Installs nothing. Debian and Ubuntu have promtool in the package `prometheus`.
set -euo pipefail

URL=${1:-http://127.0.0.1:8000}
PROMTOOL=${PROMTOOL:-promtool}

command -v "$PROMTOOL" >/dev/null 2>&1 || {
    echo "promtool is missing: install it (apt-get install prometheus), or set PROMTOOL to its path" >&2
    exit 2
}

page=$(mktemp)
complaints=$(mktemp)
trap 'rm -f "$page" "$complaints"' EXIT
curl --silent --show-error --fail --max-time 10 --output "$page" "$URL/metrics"

# 0: no complaint, 3: lint only; anything else is a page that cannot be read.
status=0
"$PROMTOOL" check metrics <"$page" >"$complaints" 2>&1 || status=$?
[ "$status" = 0 ] || [ "$status" = 3 ] || {
    cat "$complaints" >&2
    exit 1
}
colon="^vllm:[a-z0-9_]+ metric names should not contain ':'$"
total='^(pinion_kv_blocks_total|vllm:iteration_tokens_total) non-counter metrics should not have "_total" suffix$'
if grep -Ev -e "$colon" -e "$total" "$complaints" >&2; then
    exit 1
fi
echo "promtool: $(grep -c '^# TYPE' "$page") families, no complaint"
