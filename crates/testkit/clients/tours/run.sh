#!/usr/bin/env bash
# Tours of client libraries, unchanged and pinned, against a service of scripted_model.py's folder that runs already; and
# the recipes of docs/RECIPES.md, as they stand there. Starts no service itself. `deploy/test.sh tours` starts one.
#
#   BASE_URL=http://127.0.0.1:8000/v1 crates/testkit/clients/tours/run.sh           all tours and recipes
#   BASE_URL=.. crates/testkit/clients/tours/run.sh langchain agents recipes        only these
#   BASE_URL=.. crates/testkit/clients/tours/run.sh pooled_recipes                  those of a service whose model pools
#
#   PINION_CACHE    where the clients are installed     (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON   the Python, from 3.11 on            (default: python3)
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PINION_PYTHON:-python3}
: "${BASE_URL:?names the service, such as http://127.0.0.1:8000/v1}"
export BASE_URL
# A key or address of the environment would send a tour elsewhere, and several libraries report their use by default.
unset OPENAI_API_KEY OPENAI_BASE_URL ANTHROPIC_API_KEY ANTHROPIC_BASE_URL ANTHROPIC_AUTH_TOKEN
export HAYSTACK_TELEMETRY_ENABLED=False LITELLM_LOCAL_MODEL_COST_MAP=True LANGSMITH_TRACING=false PYTHONDONTWRITEBYTECODE=1

names=("$@")
[ $# -gt 0 ] || names=(openai anthropic langchain llamaindex instructor pydantic_ai agents haystack litellm recipes)
failed=()
for name in "${names[@]}"; do
    if [ "$name" = recipes ]; then
        "$PYTHON" "$HERE/recipes.py" || failed+=("$name")
    elif [ "$name" = pooled_recipes ]; then
        "$PYTHON" "$HERE/recipes.py" --pools || failed+=("$name")
    else
        folder=$("$HERE/install.sh" "$name")
        PYTHONPATH=$folder "$PYTHON" "$HERE/${name}_tour.py" || failed+=("$name")
    fi
done
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
