#!/usr/bin/env bash
# Everything that wants a GPU, on a machine that has one, from a bundle built on a machine that has none.
#
#   benchmarks/gpu.sh bundle FOLDER                builds it here: programs, CUDA object, this script; under 60 MB
#   FOLDER/gpu.sh run OUT                          there: needs an NVIDIA driver and a Python with torch; under 8 minutes
#   FOLDER/gpu.sh run OUT --dry-run OBJECT MODEL   the same logic on the emulated device and a small model
#
#   TRACE=FILE    a trace for the online replay, instead of synthetic arrivals
#   PYTHON=...    the Python with torch, whose libraries are used (default: python3)
#
# Each stage has a deadline of its own, writes OUT/<stage>.jsonl or .log, and a line in OUT/table.txt says what became of
# it. A stage that fails or is out of time does not end the run; it is listed as such. Exit code 1 if any stage failed.
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
BUNDLE_BYTES_MAX=$((60 * 1000 * 1000))
RUN_SECONDS_MAX=470

say() { printf '[gpu] %s\n' "$*" >&2; }
die() { say "error: $*"; exit 2; }

bundle() { # bundle FOLDER
    local folder=$1 root program
    root=$(cd "$HERE/.." && pwd)
    mkdir -p "$folder"
    cd "$root" || exit 2
    "$root/deploy/cuda.sh" || exit 1
    cargo build --release --locked -p pinion-launcher -p pinion-frontend -p pinion-tokenizer -p pinion-engine -p pinion-detokenizer \
        -p pinion-bench -p xtask || exit 1
    cargo build --release --locked -p pinion-model --example cuda_check || exit 1
    local target=${CARGO_TARGET_DIR:-$root/target}
    for program in pinion pinion-frontend pinion-tokenizer pinion-engine pinion-detokenizer pinion-bench xtask examples/cuda_check; do
        strip -o "$folder/$(basename "$program")" "$target/release/$program" || exit 1
    done
    cp "$target/cuda/libpinion_cuda.so" "$root/benchmarks/gpu.sh" "$root/benchmarks/gpu_reference.py" "$folder/"
    local bytes
    bytes=$(du -sb "$folder" | cut -f1)
    say "$folder holds $bytes bytes"
    [ "$bytes" -le "$BUNDLE_BYTES_MAX" ] || die "the bundle is larger than $BUNDLE_BYTES_MAX bytes"
}

# stage NAME SECONDS COMMAND...: runs it under its deadline and notes the outcome.
stage() {
    local name=$1 seconds=$2 left status=0 began=$SECONDS
    shift 2
    left=$((RUN_SECONDS_MAX - SECONDS))
    if [ "$left" -lt 5 ]; then
        note "$name" skipped "no time is left"
        return
    fi
    [ "$seconds" -le "$left" ] || seconds=$left
    timeout --kill-after=5 "$seconds" "$@" >"$OUT/$name.jsonl" 2>"$OUT/$name.log" || status=$?
    case $status in
    0) note "$name" passed "$((SECONDS - began)) s" ;;
    124 | 137) note "$name" failed "not done after $seconds s" ;;
    *) note "$name" failed "$(tail -n 1 "$OUT/$name.log" | cut -c1-160)" ;;
    esac
}

note() { # note STAGE OUTCOME WHY
    printf '%-26s %-8s %s\n' "$1" "$2" "$3" | tee -a "$OUT/table.txt" >&2
    [ "$2" != failed ] || FAILED=$((FAILED + 1))
}

# Where libtorch_cpu and cuBLASLt are: the engine takes both from the machine's Python.
find_libraries() {
    local site
    site=$("$PYTHON" -c 'import importlib.util as u, os; print(os.path.dirname(u.find_spec("torch").origin))') ||
        die "$PYTHON has no torch"
    LD_LIBRARY_PATH=$site/lib:$(find "$(dirname "$site")/nvidia" -maxdepth 2 -name lib -type d 2>/dev/null | tr '\n' ':')${LD_LIBRARY_PATH:-}
    export LD_LIBRARY_PATH
}

serve() { # serve FLAG...: the command that pinion-bench starts a server with
    printf '%s/pinion serve --model %s --port {port} --device cuda --cuda-object %s %s %s' "$HERE" "$MODEL" "$OBJECT" "${SIZES[*]}" "$*"
}

online() { # online NAME FLAG...
    local name=$1 work=(--poisson 40 --gamma-shape 0.25 --input-len 256 --output-len 64 --length-spread 0.5 --scales 0.4,0.8,1.6)
    shift
    [ -z "${TRACE:-}" ] || work=(--trace "$TRACE" --scales 0.4,0.8,1.6)
    [ -z "$DRY" ] || work=(--poisson 4 --input-len 8 --output-len 4 --scales 1)
    stage "$name" 75 "$HERE/pinion-bench" online --serve "$(serve "$@")" --tokenizer "$MODEL" "${work[@]}" --requests "$REQUESTS" \
        --label "$name" --out "$OUT/$name"
}

offline() { # offline NAME FLAG...
    local name=$1 work=(--num-prompts 128 --input-len 256 --output-len 64)
    shift
    [ -z "$DRY" ] || work=(--num-prompts 2 --input-len 8 --output-len 3)
    stage "$name" 45 "$HERE/pinion-bench" offline --serve "$(serve "$@")" --tokenizer "$MODEL" "${work[@]}" --rounds "${ROUNDS}" --label "$name" --out "$OUT/$name"
}

reference() { # reference NAME SECONDS ARGUMENT...
    local name=$1 seconds=$2
    shift 2
    if [ -n "$DRY" ]; then
        note "$name" skipped "a dry run has no torch"
    else
        stage "$name" "$seconds" "$PYTHON" "$HERE/gpu_reference.py" --model "$MODEL" "$@"
    fi
}

run() { # run OUT [--dry-run OBJECT MODEL]
    OUT=$1 DRY='' FAILED=0 ROUNDS=3 REQUESTS=200 OBJECT=$HERE/libpinion_cuda.so
    SIZES=(--max-num-seqs 128 --max-num-batched-tokens 8192)
    shift
    mkdir -p "$OUT"
    OUT=$(cd "$OUT" && pwd)
    : >"$OUT/table.txt"
    if [ "${1:-}" = --dry-run ]; then
        [ $# = 3 ] || die "--dry-run OBJECT MODEL"
        DRY=yes ROUNDS=1 REQUESTS=4 OBJECT=$2 MODEL=$3
        SIZES=(--dtype fp32 --max-num-seqs 4 --max-num-batched-tokens 64)
    else
        find_libraries
        MODEL=$OUT/model
        nvidia-smi >"$OUT/nvidia-smi.txt" 2>&1 || die "no NVIDIA driver answers; see $OUT/nvidia-smi.txt"
        stage make_model 60 "$HERE/xtask" make-model gpt2 --out "$MODEL"
    fi
    stage copy 20 "$HERE/cuda_check" "$OBJECT" copy
    stage kernels 60 "$HERE/cuda_check" "$OBJECT" kernels
    stage parity 45 "$HERE/cuda_check" "$OBJECT" parity "$MODEL"
    stage logits 20 "$HERE/cuda_check" "$OBJECT" logits "$MODEL" "$OUT/logits.f32"
    reference parity_reference 45 --logits "$OUT/logits.f32"
    stage steps 30 "$HERE/cuda_check" "$OBJECT" steps "$MODEL"
    stage steps_fused 30 "$HERE/cuda_check" "$OBJECT" steps "$MODEL" fused
    stage steps_no_graphs 30 "$HERE/cuda_check" "$OBJECT" steps "$MODEL" no-graphs
    stage steps_no_fused 30 "$HERE/cuda_check" "$OBJECT" steps "$MODEL" no-fused
    stage steps_plain_prefill 30 "$HERE/cuda_check" "$OBJECT" steps "$MODEL" plain-prefill
    stage steps_bf16 30 "$HERE/cuda_check" "$OBJECT" steps "$MODEL" bf16
    offline offline
    offline offline_no_overlap --no-overlap
    offline offline_no_graphs --no-cuda-graphs
    offline offline_fused --decode fused
    online online
    online online_fused --decode fused
    online online_no_overlap --no-overlap
    reference baseline 60 --baseline
    [ -n "$DRY" ] || rm -rf "$MODEL"
    rm -f "$OUT/logits.f32"
    say "$OUT/table.txt; $FAILED failed, $SECONDS s"
    [ "$FAILED" = 0 ]
}

case ${1:-} in
bundle) [ $# = 2 ] || die "bundle FOLDER"; bundle "$2" ;;
run) [ $# -ge 2 ] || die "run OUT [--dry-run OBJECT MODEL]"; shift; run "$@" ;;
*) sed -n '2,16p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
