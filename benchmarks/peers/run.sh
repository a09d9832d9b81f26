#!/usr/bin/env bash
# Pinion and every peer that is built, in turns: decode at 1, 4, 8, 16 and 32 rows, prefill, offline, and served at 50 % and
# 80 % of the capacity of the best of them. README.md beside this file says what is compared and how long it takes.
#
#   benchmarks/peers/run.sh all [OUT]       models, conversions, every cell   (OUT: target/bench/peers)
#   benchmarks/peers/run.sh models          only make and convert the models
#   benchmarks/peers/run.sh cells [OUT]     only the cells; what is in OUT already is not measured again
#
#   MODELS="gpt2-124m qwen3-0.6b"   TYPES="bf16 int8"   ROUNDS=5   THREADS=2   PROMPTS=128 (offline)   REQUESTS=200 (served)
#   CELLS="decode-1 decode-4 decode-8 decode-16 decode-32 prefill offline served"; also `trace`, which replays the arrivals
#   and lengths of TRACE at each of RATES (requests a second, with commas): REQUESTS of them, those that fit the context
#   OUTPUT=64 (tokens of an answer)   LEAST=8 (fewest requests of a decode cell)   PREFILLS=32 (requests of prefill)
#   PEERS="vllm openvino llama-server"   those of them that are not built are left out, and said so
#   MODELS_DIR=target/models/peers   BIN=target/release   FLAGS=   (flags of `pinion serve`)
#   SCENARIO=benchmarks/scenarios/peers.toml   a copy with one switch under `inert` takes two servers less a round
#   VLLM_TYPE=bf16 or f32, of `vllm_cpu.sh serve` in the cells of bf16   (default: f32 where the CPU has no AVX-512, since
#   vLLM multiplies bf16 there without oneDNN)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

MODELS_DIR=${MODELS_DIR:-target/models/peers}
BIN=${BIN:-target/release}
THREADS=${THREADS:-2}
OUTPUT=${OUTPUT:-64}
LEAST=${LEAST:-8}
read -ra MODELS <<<"${MODELS:-gpt2-124m qwen3-0.6b}"
read -ra TYPES <<<"${TYPES:-bf16 int8}"
read -ra CELLS <<<"${CELLS:-decode-1 decode-4 decode-8 decode-16 decode-32 prefill offline served}"

say() { printf '[peers] %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

script() { # script PEER
    case $1 in
    vllm) echo benchmarks/peers/vllm_cpu.sh ;;
    openvino) echo benchmarks/peers/openvino_genai.sh ;;
    llama-server) echo benchmarks/peers/llama_server.sh ;;
    *) die "PEERS knows vllm, openvino and llama-server, and not $1" ;;
    esac
}

# A peer is built if it can say its version.
BUILT=()
find_peers() {
    local peer program version
    for peer in ${PEERS:-vllm openvino llama-server}; do
        program=$(script "$peer")
        if version=$("$program" version 2>/dev/null); then
            BUILT+=("$peer")
            say "$peer: $version"
        else
            say "$peer is not built (\`$program build\`): left out"
        fi
    done
}

is_built() { [[ " ${BUILT[*]} " = *" $1 "* ]]; }

# Where a peer's form of a model stands.
vllm_model() { if [ "$2" = int8 ]; then echo "$MODELS_DIR/$1-vllm-int8"; else echo "$MODELS_DIR/$1"; fi; }
openvino_model() { echo "$MODELS_DIR/$1-openvino-$2"; }
gguf() { if [ "$2" = int8 ]; then echo "$MODELS_DIR/$1-q8_0.gguf"; else echo "$MODELS_DIR/$1-$2.gguf"; fi; }

convert() { # convert PEER MODEL TYPE TARGET
    [ -e "$4" ] || "$(script "$1")" convert "$MODELS_DIR/$2" "$4" "$3"
}

make_models() {
    mkdir -p "$MODELS_DIR"
    local model type
    for model in "${MODELS[@]}"; do
        if [ ! -e "$MODELS_DIR/$model/config.json" ]; then
            # gpt2-124m: the family gpt2 in the size 124m.
            cargo xtask make-model "${model%%-*}" --size "${model#*-}" --dtype bf16 --out "$MODELS_DIR/$model"
        fi
        for type in "${TYPES[@]}"; do
            if is_built openvino; then convert openvino "$model" "$type" "$(openvino_model "$model" "$type")"; fi
            if is_built llama-server; then
                convert llama-server "$model" "${type/int8/q8_0}" "$(gguf "$model" "$type")"
            fi
            if is_built vllm && [ "$type" = int8 ]; then convert vllm "$model" int8 "$(vllm_model "$model" int8)"; fi
        done
    done
}

workload() { # workload CELL FOLDER-OF-MODEL-AND-TYPE
    local lengths="--input-len 256 --output-len $OUTPUT"
    case $1 in
    decode-*)
        # Twice as many requests as rows, so that every row is taken twice.
        local rows=${1#decode-}
        echo "online --streams $rows --requests $((2 * rows > LEAST ? 2 * rows : LEAST)) $lengths" ;;
    prefill) echo "online --streams 1 --requests ${PREFILLS:-32} --input-len 256 --output-len 1" ;;
    offline) echo "offline --num-prompts ${PROMPTS:-128} $lengths" ;;
    served)
        [ -e "$2/offline/compare.json" ] || die "the served cell takes its rates from the offline cell of $2, which has not run"
        local most
        most=$(python3 benchmarks/peers/capacity.py "$2/offline/compare.json")
        python3 -c 'import sys
most, requests, lengths = float(sys.argv[1]), sys.argv[2], sys.argv[3]
print(f"online --poisson {most:.3f} --rate {0.5 * most:.2f},{0.8 * most:.2f} --requests {requests} {lengths}")' \
            "$most" "${REQUESTS:-200}" "$lengths" ;;
    trace)
        [ -e "${TRACE:-}" ] || die "the trace cell takes TRACE, the file of a trace, and RATES, in requests a second"
        echo "online --trace $TRACE --fit drop --prompts random --rate ${RATES:?} \
            --requests ${REQUESTS:-200} --max-output $OUTPUT" ;;
    *) die "CELLS does not know $1" ;;
    esac
}

# The servers of a model and type in turns, each started once a round for all of these cells.
measure() { # measure MODEL TYPE FOLDER CELL..
    local model=$1 type=$2 folder=$3 flags=${FLAGS:-} vllm_type=$2 options=() cell peer work
    shift 3
    [ "$#" -gt 0 ] || return 0
    for cell in "$@"; do
        work=$(workload "$cell" "$folder")
        options+=(--cell "$cell=$work")
    done
    for peer in "${BUILT[@]}"; do options+=(--only "$peer"); done
    [ "$type" != int8 ] || flags="--quantization int8 $flags"
    if [ "$type" = bf16 ]; then vllm_type=${VLLM_TYPE:-$(grep -qw avx512f /proc/cpuinfo && echo bf16 || echo f32)}; fi
    say "$model $type: $*"
    "$BIN/pinion" bench compare "${SCENARIO:-benchmarks/scenarios/peers.toml}" --out "$folder" --rounds "${ROUNDS:-5}" "${options[@]}" \
        --set bin="$BIN/pinion" --set threads="$THREADS" --set "flags=$flags" \
        --set model="$MODELS_DIR/$model" --set gguf="$(gguf "$model" "$type")" \
        --set vllm_model="$(vllm_model "$model" "$type")" --set vllm_type="$vllm_type" \
        --set openvino_model="$(openvino_model "$model" "$type")" | tee "$folder/$(IFS=+; echo "$*").txt"
}

run_cells() { # run_cells OUT
    local model type cell folder closed=() served=()
    [ "${#BUILT[@]}" -gt 0 ] || die "no peer is built"
    for cell in "${CELLS[@]}"; do
        # The rates of this one follow from what the others measured.
        if [ "$cell" = served ]; then served=(served); else closed+=("$cell"); fi
    done
    for model in "${MODELS[@]}"; do
        for type in "${TYPES[@]}"; do
            folder=$1/$model-$type
            mkdir -p "$folder"
            measure "$model" "$type" "$folder" "${closed[@]}"
            measure "$model" "$type" "$folder" "${served[@]}"
        done
    done
}

OUT=${2:-target/bench/peers}
case "${1:-}" in
all) find_peers; make_models; run_cells "$OUT" ;;
models) find_peers; make_models ;;
cells) find_peers; run_cells "$OUT" ;;
*) sed -n '2,19s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
