#!/usr/bin/env bash
# Everything that wants a GPU, on a machine that has one, from a bundle built on a machine that has none.
#
#   benchmarks/gpu.sh bundle FOLDER          builds it here: programs, CUDA object, these scripts; under 60 MB, and
#                                            FOLDER.tar.gz of all that, a third of it
#   benchmarks/gpu.sh bundle FOLDER dev      the same from dev builds and without the CUDA object, for a dry run
#   FOLDER/gpu.sh run OUT [PART ...]         there: needs an NVIDIA driver for CUDA 13 and cuBLASLt; every part, or
#                                            those named
#   FOLDER/gpu.sh run OUT --dry-run OBJECT [PART ...]    the same logic on the emulated device and tiny models
#   FOLDER/gpu.sh next OUT                   what to look at first, from what there is
#
# Parts, each under 8 minutes:
#   equality    every kernel against its twin, every way of launching, greedy tokens of each family against
#               transformers and libtorch, and of `--backend torch` against the native backend
#   gpt2        GPT-2 in fp16: steps against the bandwidth of a copy, kernels, offline and online service, transformers
#   families    Qwen3 0.6B and Llama 3.2 1B in bf16: steps, beside those of `--backend torch` with and without the
#               object's kernels, offline service
#   ablations   every switch against the defaults, in five paired rounds
#   profiles    nsys and torch's profiler, if they are there
#
#   TRACE=FILE    a trace to replay as well, in any format that `pinion bench online --trace` reads
#   PYTHON=...    a Python with torch and transformers, for cuBLASLt and for comparisons (default: python3)
#
# A part that was cut short goes on where it was when it is named again: a stage that has passed is not repeated, one
# that failed or was skipped is. OUT/stages.txt has a line for each; OUT/PART.txt is the part's table against its bounds
# with the stages that were skipped or failed. OUT/results.jsonl holds every figure; OUT.tar.gz is all of OUT but the
# models, a few hundred KB.
#
# The programs need no libtorch; cuBLASLt is taken from the Python's packages or from CUDA, wherever it is. Only the
# stages `parity` and `operators_*` compare with what runs on libtorch, on the CPU and on the GPU, and are skipped where
# the Python has another version of it.
# Each stage has a deadline of its own and writes OUT/STAGE.jsonl and .log; one that fails or is out of time does not
# end the run. Exit code 1 if any stage failed, 2 if there was nothing to run on.
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
BUNDLE_BYTES_MAX=$((60 * 1000 * 1000))
PART_SECONDS_MAX=470
PARTS=(equality gpt2 families ablations profiles)
READY_SECONDS_MAX=60
STOP_SECONDS_MAX=10
# What one file of a stage may hold when the stage is over.
LOG_BYTES_MAX=400000
DRIVER_MIN=580
source "$HERE/gpu_parts.sh"
PROGRAMS=(pinion pinion-frontend pinion-tokenizer pinion-detokenizer pinion-bench xtask)

say() { printf '[gpu] %s\n' "$*" >&2; }
die() { say "error: $*"; exit 2; }

# The engine of a bundle is built without libtorch, in a folder of its own: the other programs do not know the
# difference.
bundle() { # bundle FOLDER [dev]
    local folder=$1 root target program bytes
    root=$(cd "$HERE/.." && pwd)
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    cd "$root" || exit 2
    target=$(cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
    if [ "${2:-}" = dev ]; then
        build_dev || exit 1
    else
        build_release || exit 1
    fi
    cp "$root"/benchmarks/{gpu.sh,gpu_parts.sh,gpu_reference.py,gpu_table.py} "$folder/"
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

# With the packages and features of deploy/test.sh's steps no_torch and tests: after them next to nothing is built.
# Both leave their programs in the same place: the second brings back those with libtorch.
build_dev() {
    cargo build --locked --no-default-features --features pinion-ops/same-features --workspace --exclude pinion-testkit \
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

# seconds_for SECONDS: this number, or what the part has left; none if that is too little to begin.
seconds_for() {
    local left=$((PART_END - SECONDS)) wanted=$(($1 * PATIENCE))
    [ "$left" -ge 5 ] || return 1
    printf '%s' "$((left < wanted ? left : wanted))"
}

# stage NAME SECONDS COMMAND...: runs it under its deadline and notes the outcome; nothing if it has passed before.
stage() {
    local name=$1 seconds status=0 began=$SECONDS
    ! has_passed "$name" || return 0
    seconds=$(seconds_for "$2") || { note "$name" skipped "no time is left in this run"; return 0; }
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

# One line for each stage, of its last run.
note() { # note STAGE OUTCOME WHY
    grep -v "^$PART $1 " "$OUT/stages.txt" >"$OUT/stages.part"
    printf '%s %s %s %s\n' "$PART" "$1" "$2" "$3" >>"$OUT/stages.part"
    mv "$OUT/stages.part" "$OUT/stages.txt"
    printf '%-26s %-8s %s\n' "$1" "$2" "$3" >&2
    [ "$2" != failed ] || FAILED=$((FAILED + 1))
}

has_passed() { grep -q "^$PART $1 passed " "$OUT/stages.txt"; }

# The driver's version, from the first source that has it. Where none has it but a device is there, the stage `device`
# decides.
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

# Folders with cuBLASLt and, for `parity` and `operators`, libtorch: of the Python's packages first, then of CUDA.
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

# server NAME FLAG...: the server that the stages after it share, in place of the one before. The first that has not
# passed starts it.
server() {
    stop_server
    WANTED=("$@")
}

start_server() { # start_server NAME FLAG...
    local name=server_$1 seconds began=$SECONDS log=$OUT/server_$1.log
    shift
    WANTED=()
    seconds=$(seconds_for "$READY_SECONDS_MAX") || { note "$name" skipped "no time is left in this run"; return 0; }
    # It may stay until the end of the run, and no longer.
    "${ON_SERVER_CPUS[@]}" timeout --kill-after=5 $((PART_SECONDS_MAX * PATIENCE + 30)) "$HERE/pinion" serve --model "$MODEL" --port 0 \
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
    URL= WANTED=()
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
    ! has_passed "$name" || return 0
    [ ${#WANTED[@]} = 0 ] || start_server "${WANTED[@]}"
    if [ -z "$URL" ]; then
        note "$name" skipped "there is no server"
    else
        stage "$name" "$seconds" "${ON_CLIENT_CPUS[@]}" "$HERE/pinion-bench" "$@" --url "$URL" --tokenizer "$MODEL" \
            --label "$name" --out "$OUT/$name"
    fi
}

check() { # check NAME SECONDS CHORE...: a chore of cuda_check
    local name=$1 seconds=$2
    shift 2
    stage "$name" "$seconds" "$HERE/cuda_check" "$OBJECT" "$@"
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
    REPLAY=(--requests 200)
    ON_DEVICE=(--device cuda)
    check_driver
    # Without a device nothing else has a meaning.
    check device 30 device || die "$(last_words "$OUT/device.log")"
}

dry_run() {
    # A machine that tests may do much else beside: there only what hangs is out of time.
    PATIENCE=4 ROUNDS=2 PAIRS=1 REQUESTS=3 DRY=yes
    SIZES=(--dtype fp32 --max-num-seqs 4 --max-num-batched-tokens 64 --cuda-gemm heuristic)
    BATCH=(--num-prompts 2 --input-len 8 --output-len 3)
    ARRIVALS=(--poisson 8 --input-len 8 --output-len 3 --scales 0.4,0.8,1.6 --warmup 0)
    REPLAY=(--requests 3 --max-input 8 --max-output 3 --warmup 0)
    ON_DEVICE=(--device cpu --small)
    if [ -z "$TRACE" ]; then
        TRACE=$OUT/trace.csv
        printf '%s\r\n' TIMESTAMP,ContextTokens,GeneratedTokens '2023-11-16 18:17:03.1,9,3' '2023-11-16 18:17:03.4,700,2' \
            '2023-11-16 18:17:03.6,5,9' >"$TRACE"
    fi
    check device 30 device || die "$(last_words "$OUT/device.log")"
}

run() { # run OUT [--dry-run OBJECT] [PART ...]
    OUT=$1 FAILED=0 PATIENCE=1 ROUNDS=3 PAIRS=5 REQUESTS=400 DRY='' OBJECT=$HERE/libpinion_cuda.so TRACE=${TRACE:-} RUNNING='' SERVER=''
    URL='' WANTED=() PART=start PART_END=$((SECONDS + PART_SECONDS_MAX))
    local setup=real_run
    shift
    mkdir -p "$OUT" || exit 2
    OUT=$(cd "$OUT" && pwd)
    MODELS=$OUT/models
    [ -z "$TRACE" ] || [ -r "$TRACE" ] || die "TRACE=$TRACE cannot be read"
    touch "$OUT/stages.txt"
    # What the machine is, is looked at in every run.
    sed -i -e '/^start /d' -e '/^[a-z0-9]* run /d' "$OUT/stages.txt"
    trap 'kill -KILL -- "-$RUNNING" "-$SERVER" 2>/dev/null' EXIT
    trap 'note run failed "stopped from outside"; collect; exit 2' INT TERM
    # The reason of a panic is what it says last.
    export RUST_BACKTRACE=0
    choose_cpus
    find_libraries
    if [ "${1:-}" = --dry-run ]; then
        [ $# -ge 2 ] || die "--dry-run OBJECT"
        OBJECT=$2 setup=dry_run
        shift 2
    fi
    local wanted=("$@")
    for PART in "${wanted[@]}"; do
        [[ " ${PARTS[*]} " == *" $PART "* ]] || die "no part is called $PART; there are ${PARTS[*]}"
    done
    PART=start
    "$setup"
    find_torch
    for PART in "${wanted[@]:-${PARTS[@]}}"; do
        run_part
    done
    collect
    say "$OUT.tar.gz holds $(stat -c %s "$OUT.tar.gz") bytes; $FAILED failed, $SECONDS s"
    [ "$FAILED" = 0 ]
}

# Its stages; then its table, and what was left out.
run_part() {
    say "== $PART"
    PART_END=$((SECONDS + PART_SECONDS_MAX * PATIENCE))
    "part_$PART"
    stop_server
    "$PYTHON" "$HERE/gpu_table.py" "$OUT" "$PART" >"$OUT/$PART.txt" 2>"$OUT/table_$PART.log" ||
        note "table_$PART" failed "$(last_words "$OUT/table_$PART.log")"
    cat "$OUT/$PART.txt"
}

# One file to carry home.
collect() {
    { cat "$HERE/commit"; date -u +%FT%TZ; } >"$OUT/commit.txt"
    "$PYTHON" "$HERE/gpu_table.py" "$OUT" results || note results failed "$OUT/results.jsonl could not be written"
    tar -C "$OUT/.." --exclude="$(basename "$OUT")/models" -czf "$OUT.tar.gz" "$(basename "$OUT")" ||
        note archive failed "tar could not write $OUT.tar.gz"
}

main() {
    case ${1:-} in
    bundle) [ $# = 2 ] || [ "${3:-}" = dev ] || die "bundle FOLDER [dev]"; bundle "$2" "${3:-}" ;;
    run) [ $# -ge 2 ] || die "run OUT [--dry-run OBJECT] [PART ...]"; shift; run "$@" ;;
    next) [ $# = 2 ] || die "next OUT"; "$PYTHON" "$HERE/gpu_table.py" "$2" next ;;
    *) sed -n '2,/^set /{/^#/p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    esac
}

# On one line: a script that is changed while it runs reads no further.
main "$@"; exit
