#!/usr/bin/env bash
# The official OpenAI and Anthropic clients and the AI SDK, unchanged, against a service that runs already. Starts nothing itself.
#
#   BASE_URL=http://127.0.0.1:8000/v1 crates/testkit/clients/run.sh
#   BASE_URL=.. crates/testkit/clients/run.sh reasoning   only openai-python, on a fake model whose template reasons
#   BASE_URL=.. crates/testkit/clients/run.sh embeddings  only openai-python, on a model that pools
#
#   PINION_CACHE    where the clients are installed   (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON   the Python whose pip is used      (default: python3)
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}
PYTHON=${PINION_PYTHON:-python3}
: "${BASE_URL:?names the service, such as http://127.0.0.1:8000/v1}"
export BASE_URL

OPENAI_PYTHON=3.51.0
ANTHROPIC_PYTHON=2.12.0
# The newest major that still runs on Node 20.
OPENAI_NODE=6.49.0
# What other JavaScript programs come through.
AI_SDK=6.0.326
AI_SDK_PROVIDER=2.0.87

say() { printf '[clients] %s\n' "$*" >&2; }

# Installs into a fresh folder and moves it into place when it is complete, so that a broken download is not
# taken for an installation and two runs do not disturb each other.
place() { # place FOLDER COMMAND...
    local folder=$1
    shift
    [ ! -d "$folder" ] || return 0
    mkdir -p "$CACHE"
    local part
    part=$(mktemp -d "$folder.XXXXXX")
    "$@" "$part" >&2 || { rm -rf "$part"; return 1; }
    mv -T "$part" "$folder" 2>/dev/null || rm -rf "$part"
}

pip_install() { # pip_install REQUIREMENT FOLDER
    say "installing $1"
    PIP_ROOT_USER_ACTION=ignore "$PYTHON" -m pip install --quiet --disable-pip-version-check --target "$2" "$1"
}

install_node() { # install_node FOLDER
    say "installing openai-node $OPENAI_NODE"
    npm install --silent --no-audit --no-fund --prefix "$1" "openai@$OPENAI_NODE"
}

install_ai_sdk() { # install_ai_sdk FOLDER
    say "installing ai $AI_SDK with @ai-sdk/openai-compatible $AI_SDK_PROVIDER"
    npm install --silent --no-audit --no-fund --prefix "$1" "ai@$AI_SDK" "@ai-sdk/openai-compatible@$AI_SDK_PROVIDER"
}

python_folder=$CACHE/openai-python-$OPENAI_PYTHON
place "$python_folder" pip_install "openai==$OPENAI_PYTHON"
if [ "${1:-}" = reasoning ]; then
    PYTHONPATH=$python_folder exec "$PYTHON" "$HERE/openai_python_reasoning.py"
fi
if [ "${1:-}" = embeddings ]; then
    PYTHONPATH=$python_folder exec "$PYTHON" "$HERE/openai_python_embeddings.py"
fi
PYTHONPATH=$python_folder "$PYTHON" "$HERE/openai_python.py"
anthropic_folder=$CACHE/anthropic-python-$ANTHROPIC_PYTHON
place "$anthropic_folder" pip_install "anthropic==$ANTHROPIC_PYTHON"
PYTHONPATH=$anthropic_folder "$PYTHON" "$HERE/anthropic_python.py"

if command -v node >/dev/null && command -v npm >/dev/null; then
    node_folder=$CACHE/openai-node-$OPENAI_NODE
    place "$node_folder" install_node
    NODE_FOLDER=$node_folder node "$HERE/openai_node.mjs"
    ai_folder=$CACHE/ai-sdk-$AI_SDK-$AI_SDK_PROVIDER
    place "$ai_folder" install_ai_sdk
    NODE_FOLDER=$ai_folder node "$HERE/ai_sdk.mjs"
else
    echo "openai-node, ai-sdk: skipped, there is no node with npm here"
fi
