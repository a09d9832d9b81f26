#!/usr/bin/env bash
# "The tail comes from here, and this switch removes it": experiments of five paired rounds, each with a table, a
# verdict and a picture. docs/EXPERIMENTS.md says what each asks and what was expected.
#
#   benchmarks/experiments/run.sh NAME [OUT]   one of the names below, or all   (OUT: target/bench/experiments)
#   benchmarks/experiments/run.sh check NAME   only say whether this machine has what it needs
#
#   jitter                prefault and locked memory, under memory pressure
#   neighbour-cpu         pinning, beside a program that spins
#   neighbour-cache       the same, beside one that fills the last-level cache
#   neighbour-bandwidth   the same, beside one that copies memory
#   bursts                time budget of steps, or fixed chunks, under bursts of long prompts
#   tenants               fair shares and admission, beside a greedy tenant
#   channel               ring, or ipc-channel, with 1000 streams
#
#   BIN=target/release   BENCH=$BIN/pinion-bench   MODEL=target/models/gpt2-124m   ROUNDS=5
#   FLAGS=         flags of `pinion serve` for every variant
#   BUSY_MAX=0.1   share of the CPUs that others may take at the start; 1 starts in any case, to try the scripts
#   WORK=          flags that are added to the workload, to try the scripts with less of it
#
# OUT/NAME gets the result, table.md and report/. What is there already is not measured again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

HERE=benchmarks/experiments
BIN=${BIN:-target/release}
BENCH=${BENCH:-$BIN/pinion-bench}
MODEL=${MODEL:-target/models/gpt2-124m}
DEMO=deploy/demo-model
BUSY_MAX=${BUSY_MAX:-0.1}
FLAGS=${FLAGS:-}
NAMES="jitter neighbour-cpu neighbour-cache neighbour-bandwidth bursts tenants channel"
# Memory that a service under pressure has beyond what it cannot do without: for pages of files, and for the hog.
SPARE_MIB=64

say() { printf '[experiments] %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

needs_programs() { # needs_programs PROGRAM..
    local program
    for program in python3 "$@"; do command -v "$program" >/dev/null || die "$program is needed"; done
    for program in "$BIN/pinion" "$BIN/pinion-engine" "$BENCH"; do
        [ -x "$program" ] || die "$program is missing: cargo build --release --locked --workspace --bins, or say BIN="
    done
}

# Requests that do not fit the context would be cut to it.
needs_model() { # needs_model CONTEXT
    local context
    [ -e "$MODEL/config.json" ] || die "$MODEL is missing: cargo xtask make-model gpt2 --dtype bf16 --out $MODEL"
    context=$(python3 -c 'import json, sys
config = json.load(open(sys.argv[1]))
print(config.get("n_positions") or config.get("max_position_embeddings") or 0)' "$MODEL/config.json")
    [ "$context" -ge "$1" ] || die "$MODEL has a context of $context tokens, and $1 are needed"
}

needs_machine() { python3 $HERE/machine.py check --busy-max "$BUSY_MAX" "$@" || exit 1; }

# Dies where NAME cannot be measured here.
needs() { # needs NAME
    case $1 in
    jitter) needs_programs prlimit truncate ldd; needs_model 576; needs_machine --cgroup --lock ;;
    neighbour-*) needs_programs taskset; needs_model 384; needs_machine --cores 2 ;;
    bursts) needs_programs; needs_model 768; needs_machine ;;
    tenants) needs_programs; needs_machine --files 2048 ;;
    channel) needs_programs; needs_machine --files 4096 ;;
    *) die "there is no experiment $1; there are $NAMES" ;;
    esac
}

# Measures, makes sure that the hogs were there, and draws.
measure() { # measure NAME OUT SCENARIO OPTION..
    local name=$1 out=$2 scenario=$3
    shift 3
    # shellcheck disable=SC2086
    "$BENCH" ablate "$HERE/$scenario.toml" --out "$out" --rounds "${ROUNDS:-5}" --set bin="$BIN/pinion" \
        --set "flags=$FLAGS" "$@" ${WORK:+-- $WORK} | tee "$out/tables.txt"
    python3 $HERE/table.py "$out" >"$out/table.md.part" || die "$name: see above, and $out/runs/*.server.log"
    mv "$out/table.md.part" "$out/table.md"
    "$BENCH" plot "$out" --out "$out/report" --title "Experiment: $name"
    say "$name: $out/table.md, $out/report/report.html"
}

jitter() { # jitter OUT
    local size libraries file forget="" unlocked="prlimit --memlock=0:0" mib
    size=$(sed -n 's/^size = "\(.*\)"$/\1/p' $HERE/jitter.toml)
    # Holes take no disk, but pages of the cache when they are read.
    HOLES=$1/holes
    trap 'rm -f "$HOLES"' EXIT
    truncate -s 2G "$HOLES"
    libraries=$(ldd "$BIN/pinion-engine" | awk '$3 ~ /torch|c10|gomp/ {print $3}')
    for file in "$BIN"/pinion* $libraries "$MODEL/model.safetensors"; do
        if [ -f "$file" ]; then forget="$forget --forget $file"; fi
    done
    if [ "$(id -u)" = 0 ]; then
        command -v setpriv >/dev/null || die "setpriv is needed, since root may lock memory whatever the limit says"
        unlocked="setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock $unlocked"
    fi
    # Weighed once, so that a run that is there already was made with the same limit.
    if [ -s "$1/weight_mib" ]; then
        mib=$(<"$1/weight_mib")
    else
        # shellcheck disable=SC2086
        mib=$(python3 $HERE/beside.py --weigh $forget -- "$BIN/pinion" serve --model "$MODEL" --port "$(free_port)" \
            $size $FLAGS 2>"$1/weigh.log") || die "the service could not be weighed: $mib $1/weigh.log"
        echo "$mib" >"$1/weight_mib"
    fi
    say "the service cannot do without $mib MiB; it gets $((mib + SPARE_MIB))"
    measure jitter "$1" jitter --set model="$MODEL" --set mib="$((mib + SPARE_MIB))" --set "forget=$forget" \
        --set "unlocked=$unlocked" --set "hog=files --file $HOLES"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

neighbour() { # neighbour KIND OUT
    local own theirs cpu hogs=""
    read -r own theirs <<<"$(python3 $HERE/machine.py neighbour)"
    for cpu in ${theirs//,/ }; do hogs="$hogs --hog '$1 --cpu $cpu'"; done
    say "the neighbour has the CPUs $theirs; $own are left"
    measure "neighbour-$1" "$2" neighbour --set model="$MODEL" --set own="$own" --set "hogs=$hogs"
}

# Three quarters of the rate at which a batch of such requests is served: bursts are above it, pauses below.
bursts() { # bursts OUT
    local rate size
    size=$(sed -n 's/^size = "\(.*\)"$/\1/p' $HERE/bursts.toml)
    "$BENCH" offline --serve "$BIN/pinion serve --model $MODEL --port {port} $size $FLAGS" --tokenizer "$MODEL" \
        --num-prompts 8 --input-len 480 --output-len 128 --rounds 1 --no-warmup --out "$1/capacity" >&2
    rate=$(python3 -c 'import json, sys
run = json.load(open(sys.argv[1]))["runs"][0]
print(round(run["figures"]["requests_per_s"] * 0.75, 2))' "$1/capacity/offline.json")
    say "$rate requests arrive in a second"
    measure bursts "$1" bursts --set model="$MODEL" --set rate="$rate"
}

run() { # run NAME OUT
    needs "$1"
    mkdir -p "$2"
    case $1 in
    jitter | bursts) "$1" "$2" ;;
    neighbour-*) neighbour "${1#neighbour-}" "$2" ;;
    tenants | channel) measure "$1" "$2" "$1" --set model=$DEMO ;;
    esac
}

ulimit -Sn "$(ulimit -Hn)"
OUT=${2:-target/bench/experiments}
case "${1:-}" in
"" | -h | --help) sed -n '2,23s/^# \{0,1\}//p' $HERE/run.sh; exit 2 ;;
check) needs "${2:-}" ;;
all)
    failed=""
    for name in $NAMES; do $HERE/run.sh "$name" "$OUT" || failed="$failed $name"; done
    [ -z "$failed" ] || die "not measured:$failed"
    ;;
*) run "$1" "$OUT/$1" ;;
esac
