#!/usr/bin/env bash
# Everything that wants a GPU, on a machine that has one, from a bundle built on a machine that has none.
#
#   benchmarks/gpu.sh bundle FOLDER          builds it here: programs, CUDA object, this script; under 60 MB, and FOLDER.tar.gz
#                                            of all that, a third of it
#   benchmarks/gpu.sh bundle FOLDER dev      the same from dev builds and without the CUDA object, for a dry run
#   FOLDER/gpu.sh run OUT                    there: needs an NVIDIA driver for CUDA 13 and cuBLASLt; under 8 minutes
#   FOLDER/gpu.sh run OUT --dry-run OBJECT   the same logic on the emulated device and a tiny model
#
#   TRACE=FILE    a trace to replay as well, in any format that `pinion bench online --trace` reads
#   PYTHON=...    a Python with torch and transformers, for cuBLASLt and for comparisons (default: python3)
#
# The programs need no libtorch; cuBLASLt is taken from the Python's packages or from CUDA, wherever it is. Only the stage
# `parity` compares with the CPU engine on libtorch, and is skipped where the Python has another version of it.
# Each stage has a deadline of its own, writes OUT/<stage>.jsonl and .log, and a line in OUT/table.txt says what became of
# it. A stage that fails or is out of time does not end the run; it is listed as such. At the end OUT/results.jsonl holds
# every figure and OUT/table.txt the short of it, which is printed last; OUT.tar.gz is all of OUT, a few hundred KB. Exit
# code 1 if any stage failed, 2 if there was nothing to run on.
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
BUNDLE_BYTES_MAX=$((60 * 1000 * 1000))
RUN_SECONDS_MAX=470
# Correctness has to be through by the first, steps and service by the second; the rest compares switches.
CHECKS_SECONDS_MAX=220
FIGURES_SECONDS_MAX=370
READY_SECONDS_MAX=60
STOP_SECONDS_MAX=10
# What one file of a stage may hold when the stage is over.
LOG_BYTES_MAX=400000
DRIVER_MIN=580
PROGRAMS=(pinion pinion-frontend pinion-tokenizer pinion-detokenizer pinion-bench xtask)

say() { printf '[gpu] %s\n' "$*" >&2; }
die() { say "error: $*"; exit 2; }

# The engine of a bundle is built without libtorch, in a folder of its own: the other programs do not know the difference.
bundle() { # bundle FOLDER [dev]
    local folder=$1 root target program bytes
    root=$(cd "$HERE/.." && pwd)
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    cd "$root" || exit 2
    target=${CARGO_TARGET_DIR:-$root/target}
    if [ "${2:-}" = dev ]; then
        build_dev || exit 1
    else
        build_release || exit 1
    fi
    cp "$root"/benchmarks/{gpu.sh,gpu_reference.py,gpu_table.py} "$folder/"
    sed -n 's/^TORCH_VERSION=//p' "$root/deploy/setup.sh" >"$folder/torch_version"
    commit >"$folder/commit"
    [ "${2:-}" != dev ] || return 0
    bytes=$(du -sb "$folder" | cut -f1)
    tar -C "$folder/.." -czf "$folder.tar.gz" "$(basename "$folder")" || exit 1
    say "$folder holds $bytes bytes, $folder.tar.gz $(stat -c %s "$folder.tar.gz")"
    [ "$bytes" -le "$BUNDLE_BYTES_MAX" ] || die "the bundle is larger than $BUNDLE_BYTES_MAX bytes"
}

build_release() {
    local torchless=$target/no-torch
    "$root/deploy/cuda.sh" || return 1
    cargo build --locked --release --no-default-features --target-dir "$torchless" -p pinion-launcher -p pinion-frontend \
        -p pinion-tokenizer -p pinion-engine -p pinion-detokenizer -p pinion-bench -p xtask || return 1
    cargo build --locked --release --no-default-features --target-dir "$torchless" -p pinion-model --example cuda_check || return 1
    cargo build --locked --release -p pinion-model --example cuda_check || return 1
    for program in "${PROGRAMS[@]}" pinion-engine examples/cuda_check; do
        strip -o "$folder/$(basename "$program")" "$torchless/release/$program" || return 1
    done
    strip -o "$folder/cuda_check_torch" "$target/release/examples/cuda_check" || return 1
    cp "$target/cuda/libpinion_cuda.so" "$folder/"
}

# With the packages and features of deploy/test.sh's steps no_torch and tests, so that after them next to nothing is built.
# Both leave their programs in the same place: the second brings back those with libtorch.
build_dev() {
    cargo build --locked --no-default-features --workspace --exclude pinion-testkit --exclude pinion-bench \
        --bin pinion-engine --example cuda_check || return 1
    link_to "$target/debug/pinion-engine" "$folder/pinion-engine" || return 1
    link_to "$target/debug/examples/cuda_check" "$folder/cuda_check" || return 1
    cargo build --locked --workspace --bins || return 1
    cargo test --locked --no-run --quiet --workspace || return 1
    for program in "${PROGRAMS[@]}"; do
        link_to "$target/debug/$program" "$folder/$program" || return 1
    done
    link_to "$target/debug/examples/cuda_check" "$folder/cuda_check_torch"
}

link_to() { ln -f "$1" "$2" 2>/dev/null || cp "$1" "$2"; }

commit() {
    local id
    id=$(git rev-parse --short=12 HEAD 2>/dev/null) || id=unknown
    [ -z "$(git status --porcelain --untracked-files=no 2>/dev/null)" ] || id+=+changes
    printf '%s\n' "$id"
}

# seconds_for SECONDS: this number, or what the phase has left; none if that is too little to begin.
seconds_for() {
    local left=$((PHASE_END * PATIENCE - SECONDS)) wanted=$(($1 * PATIENCE))
    [ "$left" -ge 5 ] || return 1
    printf '%s' "$((left < wanted ? left : wanted))"
}

# stage NAME SECONDS COMMAND...: runs it under its deadline and notes the outcome.
stage() {
    local name=$1 seconds status=0 began=$SECONDS
    seconds=$(seconds_for "$2") || { note "$name" skipped "no time is left"; return 0; }
    shift 2
    # `timeout` heads a process group of its own, so what a stage leaves behind can be ended.
    timeout --kill-after=5 "$seconds" "$@" >"$OUT/$name.jsonl" 2>"$OUT/$name.log" </dev/null &
    RUNNING=$!
    wait "$RUNNING" || status=$?
    kill -KILL -- "-$RUNNING" 2>/dev/null
    RUNNING=
    cut_short "$OUT/$name.jsonl" "$OUT/$name.log"
    case $status in
    0) note "$name" passed "$((SECONDS - began)) s" ;;
    124 | 137) note "$name" failed "not done after $seconds s" ;;
    *) note "$name" failed "exit code $status: $(last_words "$OUT/$name.log")" ;;
    esac
    return "$status"
}

# What was said last, unless that is what a panic always ends with.
last_words() {
    local why
    why=$(grep -v -e '^$' -e RUST_BACKTRACE "$1" | tail -n 1 | cut -c1-200)
    printf '%s' "${why:-nothing was said}"
}

# Leaves the ends of a file that is too long.
cut_short() {
    local file
    for file; do
        [ "$(stat -c %s "$file" 2>/dev/null || echo 0)" -gt "$LOG_BYTES_MAX" ] || continue
        { head -c $((LOG_BYTES_MAX / 2)) "$file"; printf '\n... cut ...\n'; tail -c $((LOG_BYTES_MAX / 2)) "$file"; } >"$file.part"
        mv "$file.part" "$file"
    done
}

note() { # note STAGE OUTCOME WHY
    printf '%-26s %-8s %s\n' "$1" "$2" "$3" | tee -a "$OUT/table.txt" >&2
    [ "$2" != failed ] || FAILED=$((FAILED + 1))
}

# The driver's version, from the first source that has it. Where none has but a device is there, the stage `device` decides.
check_driver() {
    local version
    version=$(timeout 15 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    [[ $version == [0-9]* ]] ||
        version=$(sed -n 's/.*Kernel Module[^0-9]*\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null | head -n 1)
    if [[ $version == [0-9]* ]]; then
        [ "${version%%.*}" -ge "$DRIVER_MIN" ] || die "the NVIDIA driver is $version, and CUDA 13 needs $DRIVER_MIN or newer"
    elif ! compgen -G '/dev/nvidia*' >/dev/null; then
        die "there is no NVIDIA driver here: no answer from nvidia-smi, no /proc/driver/nvidia, no /dev/nvidia*"
    fi
    say "NVIDIA driver ${version:-of unknown version}"
    { timeout 15 nvidia-smi; timeout 15 nvidia-smi -q -d CLOCK,POWER; lscpu; cat /etc/os-release; } >"$OUT/machine.txt" 2>&1 || true
}

# Folders with cuBLASLt and, for `parity`, libtorch: of the Python's packages first, then of CUDA.
find_libraries() {
    local folder
    while read -r folder; do
        LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done < <("$PYTHON" -c '
import os, sys, glob
for path in sys.path:
    for folder in [os.path.join(path, "torch", "lib")] + sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib"))):
        if os.path.isdir(folder):
            print(folder)' 2>/dev/null
        compgen -G '/usr/local/cuda/lib64'; compgen -G '/usr/local/cuda-*/lib64'; compgen -G '/usr/local/nvidia/lib64')
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
}

# The versions of the Python's torch and transformers, without the seconds that importing them takes.
find_torch() {
    TORCH=$(version_of torch) TRANSFORMERS=$(version_of transformers)
    say "torch of $PYTHON: ${TORCH:-none}; transformers: ${TRANSFORMERS:-none}"
}

version_of() {
    "$PYTHON" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]).split("+")[0])' "$1" 2>/dev/null
}

# server NAME FLAG...: starts the server that the stages after it share, in place of the one before.
server() {
    local name=server_$1 seconds began=$SECONDS log=$OUT/server_$1.log
    shift
    stop_server
    seconds=$(seconds_for "$READY_SECONDS_MAX") || { note "$name" skipped "no time is left"; return 0; }
    # It may stay until the end of the run, and no longer.
    "${ON_SERVER_CPUS[@]}" timeout --kill-after=5 $((RUN_SECONDS_MAX * PATIENCE + 30)) "$HERE/pinion" serve --model "$MODEL" --port 0 \
        --device cuda --cuda-object "$OBJECT" "${SIZES[@]}" "$@" >/dev/null 2>"$log" </dev/null &
    SERVER=$!
    local began_ms now_ms
    began_ms=$(date +%s%3N)
    while kill -0 "$SERVER" 2>/dev/null && [ $((SECONDS - began)) -lt "$seconds" ]; do
        URL=$(sed -n 's/^pinion is ready: \(http[^ ]*\).*/\1/p' "$log")
        [ -z "$URL" ] || break
        sleep 0.05
    done
    now_ms=$(date +%s%3N)
    if [ -n "$URL" ]; then
        printf '{"ready_s": %d.%03d}\n' $(((now_ms - began_ms) / 1000)) $(((now_ms - began_ms) % 1000)) >"$OUT/$name.jsonl"
        note "$name" passed "ready after $((now_ms - began_ms)) ms"
    elif kill -0 "$SERVER" 2>/dev/null; then
        note "$name" failed "not ready after $seconds s"
        kill -KILL -- "-$SERVER" 2>/dev/null
    else
        note "$name" failed "$(last_words "$log")"
    fi
}

stop_server() {
    local began=$SECONDS
    URL=
    [ -n "$SERVER" ] || return 0
    kill -TERM "$SERVER" 2>/dev/null
    while kill -0 "$SERVER" 2>/dev/null && [ $((SECONDS - began)) -lt "$STOP_SECONDS_MAX" ]; do
        sleep 0.05
    done
    # The roles are in groups of their own and die with the launcher.
    ! kill -KILL -- "-$SERVER" 2>/dev/null || note stop_server failed "the server did not end in $STOP_SECONDS_MAX s"
    SERVER=
    cut_short "$OUT"/server_*.log
}

# served NAME SECONDS SUBCOMMAND FLAG...: pinion-bench against the server that is there.
served() {
    local name=$1 seconds=$2
    shift 2
    if [ -z "$URL" ]; then
        note "$name" skipped "there is no server"
    else
        stage "$name" "$seconds" "${ON_CLIENT_CPUS[@]}" "$HERE/pinion-bench" "$@" --url "$URL" --tokenizer "$MODEL" \
            --label "$name" --out "$OUT/$name"
    fi
}

offline() { served "$1" 30 offline "${BATCH[@]}" --rounds "$ROUNDS"; }
online() { served "$1" 60 online "${ARRIVALS[@]}" --requests "$REQUESTS" --timings; }
replay() { [ -z "$TRACE" ] || served online_trace 80 online --trace "$TRACE" "${REPLAY[@]}" --timings; }

check() { # check NAME SECONDS CHORE...: a chore of cuda_check
    local name=$1 seconds=$2
    shift 2
    stage "$name" "$seconds" "$HERE/cuda_check" "$OBJECT" "$@"
}

# Each sweep by itself: a fault or a hang of one kernel takes no other along. What fails is looked at with NVIDIA's checker.
kernels() {
    local sweep checker
    checker=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
    for sweep in $("$HERE/cuda_check" "$OBJECT" sweeps); do
        check "kernels_$sweep" 25 kernels "$sweep" || [ -z "$checker" ] ||
            stage "memcheck_$sweep" 40 "$checker" --tool memcheck --error-exitcode 3 "$HERE/cuda_check" "$OBJECT" kernels "$sweep"
    done
}

# The Python's libtorch, if it is the one that the CPU engine was built for. A dry run may find one beside the build.
parity() {
    local version
    version=$(cat "$HERE/torch_version")
    if [ "$TORCH" = "$version" ] || ! ldd "$HERE/cuda_check_torch" | grep -q 'libtorch.*not found'; then
        stage parity 60 "$HERE/cuda_check_torch" "$OBJECT" parity "$MODEL"
    else
        note parity skipped "the CPU engine needs torch $version, $PYTHON has ${TORCH:-none}"
    fi
}

reference() { # reference NAME SECONDS ARGUMENT...
    local name=$1 seconds=$2
    shift 2
    if [ -z "$TORCH" ] || [ -z "$TRANSFORMERS" ]; then
        note "$name" skipped "$PYTHON has torch ${TORCH:-none}, transformers ${TRANSFORMERS:-none}"
    else
        stage "$name" "$seconds" env HF_HUB_OFFLINE=1 "$PYTHON" "$HERE/gpu_reference.py" --model "$MODEL" "${ON_DEVICE[@]}" "$@"
    fi
}

# What the run is for comes first, so that a run that is cut short has it.
stages() {
    PHASE_END=$CHECKS_SECONDS_MAX
    check copy 20 copy
    kernels
    check greedy 40 greedy "$MODEL"
    check launches 40 launches "$MODEL"
    stage greedy_read 10 "$PYTHON" "$HERE/gpu_reference.py" --model "$MODEL" --read "$OUT/greedy.jsonl"
    reference greedy_reference 60 --greedy "$OUT/greedy.jsonl"
    parity
    PHASE_END=$FIGURES_SECONDS_MAX
    check steps 40 steps "$MODEL"
    check steps_fused 30 steps "$MODEL" fused
    check steps_dependent 30 steps "$MODEL" dependent
    check steps_mixed_graphs 30 steps "$MODEL" mixed-graphs dependent
    check steps_sampled 25 steps "$MODEL" sampled
    check rates 40 rates
    check phases 20 phases
    server graph
    offline offline
    online online
    replay
    server fused --decode fused
    offline offline_fused
    online online_fused
    server launches --cuda-dependent-launch --cuda-mixed-graphs
    offline offline_launches
    online online_launches
    PHASE_END=$RUN_SECONDS_MAX
    stop_server
    check steps_no_graphs 25 steps "$MODEL" no-graphs
    check steps_no_fused 25 steps "$MODEL" no-fused
    check steps_plain_prefill 25 steps "$MODEL" plain-prefill
    check steps_first_algorithm 25 steps "$MODEL" first-algorithm
    check steps_nucleus 25 steps "$MODEL" nucleus
    server no_overlap --no-overlap
    offline offline_no_overlap
    online online_no_overlap
    server no_graphs --no-cuda-graphs
    offline offline_no_graphs
    stop_server
    reference baseline 60 --baseline
    check steps_bf16 25 steps "$MODEL" bf16
    check load 20 load "$MODEL"
    local asked
    for asked in logprobs masked penalised; do
        check "steps_$asked" 25 steps "$MODEL" "$asked"
        check "steps_${asked}_on_host" 25 steps "$MODEL" "$asked" host-sampler
    done
}

# Two CPUs for the client where there are enough, so that no role's core is shared with it.
choose_cpus() {
    local cpus
    cpus=$(nproc)
    ON_SERVER_CPUS=() ON_CLIENT_CPUS=()
    if [ "$cpus" -ge 8 ] && taskset -c "0-$((cpus - 1))" true 2>/dev/null; then
        ON_SERVER_CPUS=(taskset -c "0-$((cpus - 3))") ON_CLIENT_CPUS=(taskset -c "$((cpus - 2))-$((cpus - 1))")
    fi
}

real_run() {
    SIZES=(--max-num-seqs 128 --max-num-batched-tokens 8192)
    BATCH=(--num-prompts 128 --input-len 256 --output-len 64)
    ARRIVALS=(--poisson 40 --gamma-shape 0.25 --input-len 256 --output-len 64 --length-spread 0.5 --scales 0.4,0.8,1.6)
    # Lighter ones than these would take minutes, and leave the GPU idle.
    REPLAY=(--scales 0.4,0.2,0.1 --requests 200)
    ON_DEVICE=(--device cuda)
    check_driver
    # Without a device nothing else has a meaning.
    check device 30 device || die "$(last_words "$OUT/device.log")"
    find_torch
    # So random that a greedy token is not only the one before it again.
    stage make_model 60 "$HERE/xtask" make-model gpt2 --out "$MODEL" --deviation 0.05 || die "there is no model: $(last_words "$OUT/make_model.log")"
}

dry_run() {
    SIZES=(--dtype fp32 --max-num-seqs 4 --max-num-batched-tokens 64 --cuda-gemm heuristic)
    BATCH=(--num-prompts 2 --input-len 8 --output-len 3)
    ARRIVALS=(--poisson 8 --input-len 8 --output-len 3 --scales 0.4,0.8,1.6 --warmup 0)
    REPLAY=(--scales 0.4,0.2,0.1 --requests 3 --max-input 8 --max-output 3 --warmup 0)
    ON_DEVICE=(--device cpu --small)
    if [ -z "$TRACE" ]; then
        TRACE=$OUT/trace.csv
        printf '%s\r\n' TIMESTAMP,ContextTokens,GeneratedTokens '2023-11-16 18:17:03.1,9,3' '2023-11-16 18:17:03.4,700,2' \
            '2023-11-16 18:17:03.6,5,9' >"$TRACE"
    fi
    check device 30 device || die "$(last_words "$OUT/device.log")"
    find_torch
    stage make_model 60 "$HERE/xtask" make-model gpt2 --size tiny --out "$MODEL" --deviation 0.2 || die "there is no model: $(last_words "$OUT/make_model.log")"
}

run() { # run OUT [--dry-run OBJECT]
    OUT=$1 FAILED=0 PATIENCE=1 ROUNDS=3 REQUESTS=400 OBJECT=$HERE/libpinion_cuda.so TRACE=${TRACE:-} RUNNING='' SERVER='' URL=''
    PHASE_END=$CHECKS_SECONDS_MAX
    shift
    mkdir -p "$OUT" || exit 2
    OUT=$(cd "$OUT" && pwd)
    MODEL=$OUT/model
    [ -z "$TRACE" ] || [ -r "$TRACE" ] || die "TRACE=$TRACE cannot be read"
    rm -rf "$OUT"/{*.jsonl,*.log,table.txt,figures.txt,online*,offline*,model}
    : >"$OUT/table.txt"
    trap 'kill -KILL -- "-$RUNNING" "-$SERVER" 2>/dev/null' EXIT
    trap 'note run failed "stopped from outside"; collect; exit 2' INT TERM
    # The reason of a panic is what it says last.
    export RUST_BACKTRACE=0
    choose_cpus
    find_libraries
    if [ "${1:-}" = --dry-run ]; then
        [ $# = 2 ] || die "--dry-run OBJECT"
        # A machine that tests may do much else beside: there only what hangs is out of time.
        PATIENCE=4 ROUNDS=2 REQUESTS=3 OBJECT=$2
        dry_run
    else
        real_run
    fi
    stages
    stop_server
    collect
    say "$OUT.tar.gz holds $(stat -c %s "$OUT.tar.gz") bytes; $FAILED failed, $SECONDS s"
    cat "$OUT/table.txt"
    [ "$FAILED" = 0 ]
}

# The short of it, and one file to carry home.
collect() {
    rm -rf "$MODEL"
    { cat "$HERE/commit"; date -u +%FT%TZ; } >"$OUT/commit.txt"
    "$PYTHON" "$HERE/gpu_table.py" "$OUT" >"$OUT/figures.txt" 2>"$OUT/figures.log" || note figures failed "$(last_words "$OUT/figures.log")"
    cat "$OUT/figures.txt" >>"$OUT/table.txt"
    tar -C "$OUT/.." -czf "$OUT.tar.gz" "$(basename "$OUT")" || note archive failed "tar could not write $OUT.tar.gz"
}

main() {
    case ${1:-} in
    bundle) [ $# = 2 ] || [ "${3:-}" = dev ] || die "bundle FOLDER [dev]"; bundle "$2" "${3:-}" ;;
    run) [ $# -ge 2 ] || die "run OUT [--dry-run OBJECT]"; shift; run "$@" ;;
    *) sed -n '2,22p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    esac
}

# On one line: a script that is changed while it runs reads no further.
main "$@"; exit
