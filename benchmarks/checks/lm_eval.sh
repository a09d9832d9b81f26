#!/usr/bin/env bash
# lm-eval on a running server: a multiple-choice task of sixteen lines through `local-completions`, that is lists of
# token ids with echo and logprobs. Prints the accuracy, and holds every loglikelihood against a computation of the same
# model in numpy. Takes seconds once the tool is there; its installation downloads some 700 MB.
#
#   benchmarks/checks/lm_eval.sh [http://HOST:PORT] [MODEL_DIR]     default: port 8000 here, deploy/demo-model
#
#   PINION_CACHE      where the tool is installed  (default: $XDG_CACHE_HOME/pinion or ~/.cache/pinion)
#   PINION_PYTHON     the Python that makes its environment  (default: python3)
#   PINION_TOLERANCE  largest difference of a loglikelihood  (default: 0.01, for a server with --dtype fp32)
#
# The server: pinion serve deploy/demo-model --dtype fp32
set -euo pipefail

LM_EVAL=0.4.13 TRANSFORMERS=5.23.0
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${PINION_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pinion}
PYTHON=${PINION_PYTHON:-python3}
FOLDER=$CACHE/lm-eval-$LM_EVAL
URL=${1:-http://127.0.0.1:8000}
MODEL=$(cd "${2:-$HERE/../../deploy/demo-model}" && pwd)

if ! [ -x "$FOLDER/bin/lm_eval" ]; then
    echo "installing lm-eval $LM_EVAL into $FOLDER" >&2
    mkdir -p "$CACHE"
    "$PYTHON" -m venv "$FOLDER"
    "$FOLDER/bin/pip" install --quiet --disable-pip-version-check "lm-eval[api]==$LM_EVAL" "transformers==$TRANSFORMERS" || {
        rm -rf "$FOLDER"
        echo "pip could not install lm-eval $LM_EVAL" >&2
        exit 2
    }
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$HERE"/lm_eval/toy.* "$work"
cd "$work"
# Nothing but the server is asked for anything.
export HF_HOME=$work/huggingface HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
model=$(curl --silent --show-error --fail --max-time 10 "$URL/v1/models" |
    "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
"$FOLDER/bin/lm_eval" run --model local-completions --include_path "$work" --tasks pinion_toy --batch_size 4 \
    --model_args "model=$model,base_url=$URL/v1/completions,tokenizer_backend=huggingface,tokenizer=$MODEL,num_concurrent=2" \
    --log_samples --output_path "$work/out" >"$work/log" 2>&1 || {
    tail -n 40 "$work/log" >&2
    exit 1
}
grep pinion_toy "$work/log" | tail -n 1
samples=$(find "$work/out" -name 'samples_pinion_toy_*.jsonl')
"$FOLDER/bin/python" "$HERE/lm_eval/compare.py" "$MODEL" "$samples" "${PINION_TOLERANCE:-0.01}"
