#!/usr/bin/env bash
# Everything that wants a GPU, on a machine that has one, from a bundle built on a machine that has none.
#
#   benchmarks/gpu.sh bundle FOLDER                builds it here: programs, CUDA object, this script; under 60 MB
#   benchmarks/gpu.sh bundle FOLDER dev            the same from dev builds and without the CUDA object, for a dry run
#   FOLDER/gpu.sh run OUT                          there: needs an NVIDIA driver for CUDA 13 and cuBLASLt; under 8 minutes
#   FOLDER/gpu.sh run OUT --dry-run OBJECT MODEL   the same logic on the emulated device and a small model
#
#   TRACE=FILE    a trace for the online replay, instead of synthetic arrivals
#   PYTHON=...    a Python with torch and transformers, for cuBLASLt and for comparisons (default: python3)
#
# The programs need no libtorch; cuBLASLt is taken from the Python's packages or from CUDA, wherever it is. Only the stage
# `parity` compares with the CPU engine on libtorch, and is skipped where the Python has another version of it.
# Each stage has a deadline of its own, writes OUT/<stage>.jsonl and .log, and a line in OUT/table.txt says what became of
# it. A stage that fails or is out of time does not end the run; it is listed as such. At the end OUT/results.jsonl holds
# every figure and OUT/table.txt the short of it; OUT.tar.gz is all of OUT. Exit code 1 if any stage failed.
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
BUNDLE_BYTES_MAX=$((60 * 1000 * 1000))
RUN_SECONDS_MAX=470
DRIVER_MIN=580
PROGRAMS=(pinion pinion-frontend pinion-tokenizer pinion-engine pinion-detokenizer pinion-bench xtask)

say() { printf '[gpu] %s\n' "$*" >&2; }
die() { say "error: $*"; exit 2; }

# The engine of a bundle is built without libtorch, in a folder of its own: the other programs do not know the difference.
bundle() { # bundle FOLDER [dev]
    local folder=$1 flavour=${2:-release} built=release root target torchless profile=(--release) place=(strip -o)
    root=$(cd "$HERE/.." && pwd)
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    cd "$root" || exit 2
    target=${CARGO_TARGET_DIR:-$root/target}
    torchless=$target/no-torch
    if [ "$flavour" = dev ]; then
        profile=() built=debug place=(link_to)
    else
        "$root/deploy/cuda.sh" || exit 1
    fi
    cargo build --locked "${profile[@]}" --no-default-features --target-dir "$torchless" -p pinion-launcher -p pinion-frontend \
        -p pinion-tokenizer -p pinion-engine -p pinion-detokenizer -p pinion-bench -p xtask || exit 1
    cargo build --locked "${profile[@]}" --no-default-features --target-dir "$torchless" -p pinion-model --example cuda_check || exit 1
    cargo build --locked "${profile[@]}" -p pinion-model --example cuda_check || exit 1
    local program
    for program in "${PROGRAMS[@]}" examples/cuda_check; do
        "${place[@]}" "$folder/$(basename "$program")" "$torchless/$built/$program" || exit 1
    done
    "${place[@]}" "$folder/cuda_check_torch" "$target/$built/examples/cuda_check" || exit 1
    cp "$root"/benchmarks/{gpu.sh,gpu_reference.py,gpu_table.py} "$folder/"
    sed -n 's/^TORCH_VERSION=//p' "$root/deploy/setup.sh" >"$folder/torch_version"
    [ "$flavour" = dev ] && return
    cp "$target/cuda/libpinion_cuda.so" "$folder/"
    local bytes
    bytes=$(du -sb "$folder" | cut -f1)
    say "$folder holds $bytes bytes"
    [ "$bytes" -le "$BUNDLE_BYTES_MAX" ] || die "the bundle is larger than $BUNDLE_BYTES_MAX bytes"
}

link_to() { ln -f "$2" "$1" 2>/dev/null || cp "$2" "$1"; }

# stage NAME SECONDS COMMAND...: runs it under its deadline and notes the outcome.
stage() {
    local name=$1 seconds=$2 left status=0 began=$SECONDS why
    shift 2
    left=$((RUN_SECONDS_MAX - SECONDS))
    if [ "$left" -lt 5 ]; then
        note "$name" skipped "no time is left"
        return 0
    fi
    [ "$seconds" -le "$left" ] || seconds=$left
    timeout --kill-after=5 "$seconds" "$@" >"$OUT/$name.jsonl" 2>"$OUT/$name.log" </dev/null || status=$?
    case $status in
    0) note "$name" passed "$((SECONDS - began)) s" ;;
    124 | 137) note "$name" failed "not done after $seconds s" ;;
    *)
        # What was said last, unless that is what a panic always ends with.
        why=$(grep -v -e '^$' -e RUST_BACKTRACE "$OUT/$name.log" | tail -n 1 | cut -c1-200)
        note "$name" failed "exit code $status: ${why:-nothing was said}"
        ;;
    esac
    return "$status"
}

note() { # note STAGE OUTCOME WHY
    printf '%-26s %-8s %s\n' "$1" "$2" "$3" | tee -a "$OUT/table.txt" >&2
    [ "$2" != failed ] || FAILED=$((FAILED + 1))
}

# The driver's version, by whoever tells it. Without an answer the stage `device` decides.
check_driver() {
    local version
    version=$(timeout 15 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    [ -n "$version" ] || version=$(sed -n 's/.*Kernel Module[^0-9]*\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null | head -n 1)
    case $version in
    [0-9]*) [ "${version%%.*}" -ge "$DRIVER_MIN" ] || die "the NVIDIA driver is $version, and CUDA 13 needs $DRIVER_MIN or newer" ;;
    *) version="of unknown version" ;;
    esac
    say "NVIDIA driver $version"
    { timeout 15 nvidia-smi; timeout 15 nvidia-smi -q -d CLOCK,POWER; lscpu; cat /etc/os-release; } >"$OUT/machine.txt" 2>&1 || true
}

# Folders with cuBLASLt and, for `parity`, libtorch: of the Python's packages first, then of CUDA.
find_libraries() {
    local folders folder
    folders=$("$PYTHON" -c '
import glob, os, sys
for path in sys.path:
    for folder in [os.path.join(path, "torch", "lib")] + sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib"))):
        if os.path.isdir(folder):
            print(folder)' 2>/dev/null)
    for folder in /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 /usr/local/nvidia/lib64; do
        [ ! -d "$folder" ] || folders+=$'\n'$folder
    done
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$(printf '%s' "$folders" | tr '\n' ':')
    export LD_LIBRARY_PATH
    TORCH=$("$PYTHON" -c 'import torch; print(torch.__version__.split("+")[0])' 2>/dev/null)
    say "torch of $PYTHON: ${TORCH:-none}"
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
    stage "$name" 45 "$HERE/pinion-bench" offline --serve "$(serve "$@")" --tokenizer "$MODEL" "${work[@]}" --rounds "$ROUNDS" \
        --label "$name" --out "$OUT/$name"
}

check() { # check NAME SECONDS CHORE...: a chore of cuda_check
    local name=$1 seconds=$2
    shift 2
    stage "$name" "$seconds" "$HERE/cuda_check" "$OBJECT" "$@"
}

parity() {
    if [ -n "$DRY" ] || [ "$TORCH" = "$(cat "$HERE/torch_version")" ]; then
        stage parity 60 "$HERE/cuda_check_torch" "$OBJECT" parity "$MODEL"
    else
        note parity skipped "the CPU engine needs torch $(cat "$HERE/torch_version"), $PYTHON has ${TORCH:-none}"
    fi
}

reference() { # reference NAME SECONDS ARGUMENT...
    local name=$1 seconds=$2
    shift 2
    if [ -n "$DRY" ] || [ -z "$TORCH" ]; then
        note "$name" skipped "$PYTHON has no torch"
    else
        stage "$name" "$seconds" "$PYTHON" "$HERE/gpu_reference.py" --model "$MODEL" "$@"
    fi
}

# What the run is for comes first, so that a run that is cut short has it.
stages() {
    check kernels 75 kernels
    check copy 20 copy
    check greedy 40 greedy "$MODEL"
    reference greedy_reference 50 --greedy "$OUT/greedy.jsonl"
    parity
    check steps 40 steps "$MODEL"
    check steps_fused 30 steps "$MODEL" fused
    offline offline
    online online
    offline offline_fused --decode fused
    online online_fused --decode fused
    check steps_no_graphs 30 steps "$MODEL" no-graphs
    check steps_no_fused 30 steps "$MODEL" no-fused
    check steps_plain_prefill 30 steps "$MODEL" plain-prefill
    check steps_first_algorithm 30 steps "$MODEL" first-algorithm
    offline offline_no_overlap --no-overlap
    offline offline_no_graphs --no-cuda-graphs
    online online_no_overlap --no-overlap
    reference baseline 60 --baseline
    check steps_bf16 30 steps "$MODEL" bf16
}

run() { # run OUT [--dry-run OBJECT MODEL]
    OUT=$1 DRY='' FAILED=0 ROUNDS=3 REQUESTS=200 OBJECT=$HERE/libpinion_cuda.so TORCH=''
    SIZES=(--max-num-seqs 128 --max-num-batched-tokens 8192)
    shift
    mkdir -p "$OUT"
    OUT=$(cd "$OUT" && pwd)
    : >"$OUT/table.txt"
    if [ "${1:-}" = --dry-run ]; then
        [ $# = 3 ] || die "--dry-run OBJECT MODEL"
        DRY=yes ROUNDS=1 REQUESTS=4 OBJECT=$2 MODEL=$3
        SIZES=(--dtype fp32 --max-num-seqs 4 --max-num-batched-tokens 64 --cuda-gemm heuristic)
    else
        find_libraries
        check_driver
        MODEL=$OUT/model
        stage make_model 60 "$HERE/xtask" make-model gpt2 --out "$MODEL" || die "there is no model: $(tail -n 1 "$OUT/make_model.log")"
    fi
    # Without a device nothing else has a meaning.
    check device 30 device || die "$(tail -n 1 "$OUT/device.log")"
    stages
    [ -n "$DRY" ] || rm -rf "$MODEL"
    collect
    say "$OUT/table.txt; $FAILED failed, $SECONDS s"
    [ "$FAILED" = 0 ]
}

# Every line of every stage with the stage's name, the short of it, and one file to carry home.
collect() {
    local file
    for file in "$OUT"/*.jsonl; do
        [ "$file" = "$OUT/results.jsonl" ] || sed -n "s/^{/{\"stage\":\"$(basename "$file" .jsonl)\",/p" "$file"
    done >"$OUT/results.jsonl"
    "$PYTHON" "$HERE/gpu_table.py" "$OUT" >"$OUT/figures.txt" 2>&1 || note figures failed "$(tail -n 1 "$OUT/figures.txt")"
    cat "$OUT/figures.txt" >>"$OUT/table.txt"
    cat "$OUT/figures.txt" >&2
    tar -C "$OUT/.." -czf "$OUT.tar.gz" "$(basename "$OUT")" || note archive failed "tar could not write $OUT.tar.gz"
}

case ${1:-} in
bundle) [ $# = 2 ] || [ "${3:-}" = dev ] || die "bundle FOLDER [dev]"; bundle "$2" "${3:-}" ;;
run) [ $# -ge 2 ] || die "run OUT [--dry-run OBJECT MODEL]"; shift; run "$@" ;;
*) sed -n '2,19p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
