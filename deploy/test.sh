#!/usr/bin/env bash
# The other command: sets up what launch.sh sets up, then checks everything that can be checked here.
# Every step prints its name and time; the first that fails ends the run. Most of a run from nothing goes to builds.
#
#   deploy/test.sh            everything
#   deploy/test.sh STEP ...   only these: fmt tidy clippy docs tests no_torch cuda gpu_dry_run loom clients checks
#   deploy/test.sh unit       the part of `tests` that starts no processes; deploy/test.sh processes, the rest of it
#   deploy/test.sh nemesis    the long run of deaths over the demo model, which is not part of everything
#   deploy/test.sh browser    the pages in a headless Chromium, which is not part of everything either
#   deploy/test.sh tours      openai, anthropic, LangChain and others, and the recipes of docs/, which are not part of everything either
#   deploy/test.sh packages   image, Debian package, wheel, chart and dashboard, which are not part of everything either
#   deploy/test.sh distributed   replicas behind Envoy, HAProxy, SMG, Ray Serve and Dynamo, which are not part of everything either
#   deploy/test.sh kubernetes the chart on a Kubernetes node that is built here, which is not part of everything either
#   deploy/test.sh simulation 100 000 seeds of the simulated service, which are not part of everything either
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/setup.sh"

# Tests share the cores with what they start: no thread pool may size itself.
export OMP_NUM_THREADS=1

step_fmt() { cargo fmt --all --check; }

step_clippy() { cargo clippy --workspace --all-targets --locked -- -D warnings; }

# Broken links and malformed examples in the documentation of our own crates.
step_docs() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked; }

# Built with the whole workspace, which the tests need too: alone it would have dependencies with other features.
step_tidy() {
    cargo build --quiet --locked --workspace --bins || return 1
    "$TARGET/debug/xtask" tidy
}

# The ring and its wake-up under every interleaving, then the same without each fence, which must fail; and the kernels'
# threads.
step_loom() {
    local end
    loom_run pinion-team || return 1
    loom_run pinion-shm || return 1
    for end in writer reader; do
        if PINION_DROP_FENCE=$end loom_run pinion-shm >"$LOGS/loom-$end.log" 2>&1; then
            say "the loom checks pass without the $end's fence: they do not check it"
            return 1
        fi
        grep -q deadlock "$LOGS/loom-$end.log" || {
            say "without the $end's fence loom found no deadlock but something else:"
            tail -n 20 "$LOGS/loom-$end.log"
            return 1
        }
        say "without the $end's fence the loom checks fail, as they must"
    done
}

loom_run() {
    RUSTFLAGS="--cfg loom" cargo test --locked --release --package "$1" --test loom --target-dir "$TARGET/loom"
}

# All tests of the workspace in one build: Cargo chooses other features of the dependencies for a part of it, and builds
# most of them a second time. They run three programs at a time: those that start processes mostly wait.
step_tests() {
    cargo build --locked --workspace --bins || return 1
    "$PYTHON" "$ROOT/deploy/run_tests.py"
}

# Unit, property and parity tests of every crate but those that start processes.
step_unit() { cargo test --locked --workspace --exclude pinion-testkit --exclude pinion-bench; }

# The fake backend must build and pass with no libtorch at all. The feature, and nearly the whole workspace by name, let
# Cargo choose the features of `tests` for the dependencies, which are not built again. Of the integration tests the
# engine's run, and those of the fake model: the others call code that `tests` ran with libtorch beside it.
step_no_torch() {
    cargo test --locked --no-default-features --features pinion-ops/same-features --workspace --exclude pinion-testkit \
        --lib --test fake --test engine_suite --test allocations
}

# The real processes, from outside.
step_processes() {
    "$PYTHON" "$ROOT/deploy/run_tests.py" pinion-testkit pinion-bench
}

# The official OpenAI and Anthropic clients and the AI SDK, unchanged, against the demo model.
step_clients() {
    with_server clients clients || return 1
    local folder=$LOGS/reasoning-model
    mkdir -p "$folder"
    cp "$ROOT"/deploy/demo-model/{config,tokenizer,tokenizer_config}.json "$folder"
    printf '%s' "$REASONING_TEMPLATE" >"$folder/chat_template.jinja"
    MODEL=$folder with_server reasoning reasoning_clients --backend fake || return 1
    with_server embeddings embeddings_client --pooling last
}

# Shows of earlier answers what followed their reasoning, and tools as a model is shown them.
REASONING_TEMPLATE='{% for m in messages %}[{{ m.role }}]{{ (m.content or "").split("</think>")[-1] }}{% endfor %}
{% if tools %}Write <tool_call>{"name": .., "arguments": ..}</tool_call>.{% endif %}[assistant]'

# What a model that reasons and calls tools says, read by openai-python. The fake model writes what it is told.
reasoning_clients() { # reasoning_clients URL
    PINION_CACHE=$CACHE PINION_PYTHON=$PYTHON BASE_URL=$1/v1 "$ROOT/crates/testkit/clients/run.sh" reasoning
}

# The demo model's vectors, read by openai-python.
embeddings_client() { # embeddings_client URL
    PINION_CACHE=$CACHE PINION_PYTHON=$PYTHON BASE_URL=$1/v1 "$ROOT/crates/testkit/clients/run.sh" embeddings
}

# The official Python clients, client libraries that come through them, and docs/RECIPES.md as it stands, on a model that calls tools.
# By name only: the first run downloads their packages.
step_tours() {
    local folder=$LOGS/tours/my-model
    "$PYTHON" "$ROOT/crates/testkit/clients/tours/scripted_model.py" "$ROOT/deploy/demo-model" "$folder" || return 1
    MODEL=$folder with_server tours tours || return 1
    with_server tours-pooled pooled_tours --pooling last --served-model-name my-model
}

tours() { # tours URL [NAME..]
    local url=$1
    shift
    PINION_CACHE=$CACHE PINION_PYTHON=$PYTHON BASE_URL=$url/v1 "$ROOT/crates/testkit/clients/tours/run.sh" "$@"
}

pooled_tours() { tours "$1" pooled_recipes; } # pooled_tours URL

clients() { # clients URL
    PINION_CACHE=$CACHE PINION_PYTHON=$PYTHON BASE_URL=$1/v1 "$ROOT/crates/testkit/clients/run.sh"
}

# Tools that know nothing of us, on what the server says of itself: schemathesis on /openapi.json, and promtool on
# /metrics where it is installed.
step_checks() { with_server checks checks --backend fake; }

checks() { # checks URL
    PINION_CACHE=$CACHE PINION_PYTHON=$PYTHON "$ROOT/benchmarks/checks/schemathesis.sh" "$1" --max-examples 15 || return 1
    if command -v promtool >/dev/null 2>&1; then
        "$ROOT/benchmarks/checks/promtool.sh" "$1"
    else
        say "promtool is not installed here: /metrics is not checked by it"
    fi
}

# The pages in a headless Chromium, over the demo model, whose engine is killed under a stream, before a service with a
# key, and before a model that pools. By name only: it wants Chromium and Node. Screenshots are in the folder of the logs.
step_browser() {
    with_server browser browser || return 1
    PINION_API_KEY=sk-for-the-browser with_server browser-key browser_key --backend fake || return 1
    with_server browser-pooled browser_pooled --backend fake --pooling last
}

browser() { # browser URL
    local engine
    engine=$(sed -n 's/.*serving peer=engine-0 pid=\([0-9]*\).*/\1/p' "$LOGS/browser-server.log")
    PINION_CACHE=$CACHE SHOTS=$LOGS/browser BASE_URL=$1 ENGINE_PID=$engine "$ROOT/crates/testkit/browser/run.sh" chat
}

browser_key() { # browser_key URL
    PINION_CACHE=$CACHE SHOTS=$LOGS/browser BASE_URL=$1 KEY=sk-for-the-browser MODEL=demo-model "$ROOT/crates/testkit/browser/run.sh" key
}

browser_pooled() { # browser_pooled URL
    PINION_CACHE=$CACHE SHOTS=$LOGS/browser BASE_URL=$1 "$ROOT/crates/testkit/browser/run.sh" pooled
}

# Runs `CHECK URL` beside a server of the demo model.
with_server() { # with_server NAME CHECK [arguments of `pinion serve`]
    local log=$LOGS/$1-server.log check=$2
    shift 2
    cargo build --locked --workspace --bins || return 1
    # What is checked is the CPU's, also where there is a GPU.
    PINION_DEVICE=cpu "$TARGET/debug/pinion" serve --port 0 --model "${MODEL:-$ROOT/deploy/demo-model}" "$@" 2>"$log" &
    local server=$! url= status=0
    for _ in $(seq 300); do
        url=$(sed -n 's/^pinion is ready: \(http[^ ]*\).*/\1/p' "$log")
        [ -z "$url" ] || break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    if [ -z "$url" ]; then
        tail -n 20 "$log"
        return 1
    fi
    "$check" "$url" || status=$?
    kill "$server"
    wait "$server" || status=$?
    return "$status"
}

# Every CUDA kernel for every target; the compiler's report on registers and spills against kernels/README.md. Then the
# set-up for a GPU on a machine that has none, with the object that was built: each start ends with one sentence.
step_cuda() {
    "$ROOT/deploy/cuda.sh" --check || return 1
    if [ -e /proc/driver/nvidia/version ]; then
        say "this machine has an NVIDIA driver: the starts without one are left out"
        return 0
    fi
    local work=$TARGET/gpu-setup lib=$TARGET/cuda/lib before status=0
    before=$(readlink "$lib") || before=
    mkdir -p "$work/driver"
    # It is never opened: without a device nothing is computed.
    : >"$work/libcublasLt.so.13"
    printf '%s' 'int cuInit(unsigned f) { return 999; } int cuGetErrorString(int c, const char** t) { return 1; }' \
        'int cuDriverGetVersion(int* v) { return 1; } int cuDeviceGetCount(int* n) { return 1; }' \
        'int cuDeviceGet(int* d, int i) { return 1; } int cuDeviceGetName(char* n, int l, int d) { return 1; }' \
        'int cuDeviceTotalMem_v2(unsigned long* b, int d) { return 1; }' \
        'int cuDeviceGetAttribute(int* v, int a, int d) { return 1; }' >"$work/driver.c"
    g++ -shared -fPIC -x c -o "$work/driver/libcuda.so.1" "$work/driver.c" || return 1
    launch_ends 0 'set up for a GPU, and no NVIDIA driver is here: install' --setup-only --device cuda &&
        launch_ends 9 'error: no NVIDIA driver is here: install' --device cuda --port 0 &&
        LD_LIBRARY_PATH=$work/driver launch_ends 9 'the NVIDIA driver fails: cuInit answers 999, ' --device cuda --port 0 &&
        ends 9 'libcuda.so.1 cannot be used: it has no pinion_cuda_abi: build it' "$TARGET/debug/pinion" serve \
            "$ROOT/deploy/demo-model" --device cuda --port 0 --cuda-object "$work/driver/libcuda.so.1" || status=1
    rm -f "$lib"
    [ -z "$before" ] || ln -sfn "$before" "$lib"
    return "$status"
}

launch_ends() { # launch_ends CODE SENTENCE FLAG...
    local code=$1 sentence=$2
    shift 2
    PINION_BUILD=dev PINION_CUBLASLT=$TARGET/gpu-setup/libcublasLt.so.13 ends "$code" "$sentence" "$ROOT/deploy/launch.sh" "$@"
}

# What a command ends with, and the sentence that stands in its output once.
ends() { # ends CODE SENTENCE COMMAND...
    local code=$1 sentence=$2 status=0 log=$LOGS/gpu-launch.log
    shift 2
    "$@" >"$log" 2>&1 || status=$?
    # The engine's own log line has it, too.
    if [ "$status" != "$code" ] || [ "$(grep -F -- "$sentence" "$log" | grep -cv ' ERROR ')" != 1 ]; then
        say "$* ends with $status and not $code, or does not say '$sentence' once: $(tail -n 3 "$log")"
        return 1
    fi
}

# What a machine with a GPU is asked, on the emulated device and tiny models: every stage must run, and only those that
# want transformers or nsys may be left out. Without a device the run must end at once; a second run has nothing left to
# do.
step_gpu_dry_run() {
    local bundle=$TARGET/gpu-dry-run object status=0
    object=$("$ROOT/kernels/emulation/build.sh") || return 1
    "$ROOT/benchmarks/gpu.sh" bundle "$bundle" dev || return 1
    rm -rf "$bundle/out"
    PYTHON=$PYTHON "$bundle/gpu.sh" run "$bundle/out" --dry-run "$bundle/no-such-object" 2>"$LOGS/gpu-no-device.log" || status=$?
    if [ "$status" != 2 ] || ! grep -q 'error: .*no-such-object' "$LOGS/gpu-no-device.log"; then
        say "without a device gpu.sh ends with $status and says: $(tail -n 1 "$LOGS/gpu-no-device.log")"
        return 1
    fi
    PYTHON=$PYTHON "$bundle/gpu.sh" run "$bundle/out" --dry-run "$object" >"$LOGS/gpu-dry-run.log" 2>&1 || return 1
    ! grep ' skipped ' "$bundle/out/stages.txt" | grep -v -E '^[a-z0-9]+ (greedy_reference_[a-z0-9]+|baseline|nsys_steps|kineto) ' || return 1
    cp "$bundle/out/stages.txt" "$LOGS/gpu-stages.txt"
    PYTHON=$PYTHON "$bundle/gpu.sh" run "$bundle/out" --dry-run "$object" gpt2 ablations 2>>"$LOGS/gpu-dry-run.log" >/dev/null || return 1
    # What has passed is not repeated, but for a look at the device, which may take another second.
    diff <(sort "$LOGS/gpu-stages.txt" | grep -v '^start ') <(sort "$bundle/out/stages.txt" | grep -v '^start ') || return 1
    PYTHON=$PYTHON "$bundle/gpu.sh" next "$bundle/out" >"$LOGS/gpu-next.txt" || return 1
    [ "$(grep -c '^[1-5]\. ' "$LOGS/gpu-next.txt")" = 5 ]
}

# Many seeds of the whole service, optimised and with debug assertions, on every CPU. PINION_SIM_RUNS says how many.
step_simulation() {
    PINION_SIM_RUNS=${PINION_SIM_RUNS:-100000} CARGO_PROFILE_DEV_OPT_LEVEL=2 cargo test --locked \
        --package pinion-simulation --test seeds --target-dir "$TARGET/simulation" -- --nocapture
}

# Three hundred rounds of deaths over the demo model, with every kind of request. By name only: a quarter of an hour.
# PINION_TEST_SEED repeats a run.
step_nemesis() {
    cargo build --locked --workspace --bins || return 1
    cargo test --locked --package pinion-testkit nemesis_model:: -- --ignored --nocapture --test-threads 1
}

# The programs that the three steps below pack and start, in FOLDER: those of PINION_PROGRAMS, like target/release, or of the
# dev profile.
programs_under_test() {
    FOLDER=${PINION_PROGRAMS:-$TARGET/debug}
    if [ -z "${PINION_PROGRAMS:-}" ]; then
        cargo build --locked --workspace --bins
    elif [ ! -x "$FOLDER/pinion" ]; then
        say "PINION_PROGRAMS=$FOLDER has no program called pinion"
        return 1
    fi
}

# What an operator installs: image, Debian package under systemd, wheel, chart, board and
# alerts. By name only. Each part is left out, and says so, where its program is missing: DOCKER (a client of a daemon, with
# the images debian:12-slim and SYSTEMD_IMAGE), PROMETHEUS, PROMTOOL name programs of other places.
step_packages() {
    programs_under_test || return 1
    local dist=$TARGET/dist left_out=() pinion=$FOLDER/pinion tools=$CACHE/packages-venv
    "$ROOT/deploy/release/release.sh" --from "$FOLDER" || return 1
    (cd "$dist" && sha256sum --quiet --check SHA256SUMS) || return 1

    if [ ! -x "$tools/bin/kubernetes-validate" ]; then
        "$PYTHON" -m venv "$tools" && "$tools/bin/pip" --quiet install helm-python-sdk==0.2.2 kubernetes-validate==1.37.0 \
            jsonschema pyyaml || return 1
    fi
    "$tools/bin/python" "$ROOT/deploy/helm/check.py" --pinion "$pinion" || return 1
    "$PYTHON" "$ROOT/deploy/wheel/check.py" "$dist"/*.whl --torch-from "$(readlink -f "$ROOT/.libtorch/..")" || return 1

    local prometheus=${PROMETHEUS:-prometheus} promtool=${PROMTOOL:-promtool}
    if command -v "$prometheus" >/dev/null && command -v "$promtool" >/dev/null; then
        "$PYTHON" "$ROOT/deploy/monitoring/check.py" --pinion "$pinion" --prometheus "$prometheus" --promtool "$promtool" || return 1
    else
        left_out+=(monitoring)
    fi
    if ${DOCKER:-docker} image inspect debian:12-slim >/dev/null 2>&1; then
        "$ROOT/deploy/docker/build.sh" pinion:check --from "$FOLDER" || return 1
        "$PYTHON" "$ROOT/deploy/docker/check.py" pinion:check || return 1
    else
        left_out+=(image)
    fi
    if [ -n "${SYSTEMD_IMAGE:-}" ]; then
        "$PYTHON" "$ROOT/deploy/systemd/check.py" "$SYSTEMD_IMAGE" "$dist"/*.deb || return 1
    else
        left_out+=(systemd)
    fi
    say "left out: ${left_out[*]:-nothing}"
}

# Replicas behind each router, which its script installs, and under Ray Serve and Dynamo.
# By name only: minutes, and downloads the first time.
step_distributed() {
    programs_under_test || return 1
    local router
    for router in envoy haproxy smg ray_serve dynamo; do
        PINION=$FOLDER/pinion "$ROOT/deploy/distributed/$router.sh" || return 1
    done
}

# The chart on a real node. By name only: it wants root, and the first run builds
# Kubernetes.
step_kubernetes() {
    programs_under_test || return 1
    PINION=$FOLDER/pinion "$ROOT/benchmarks/checks/kubernetes.sh"
}

STEPS=(fmt tidy clippy docs tests no_torch cuda)
# Each of these keeps one core busy: one line of them runs beside the other.
BESIDE=("gpu_dry_run" "loom clients checks")

case "${1:-}" in
-h | --help)
    sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac
# Steps that run only when they are named.
OPTIONAL=(unit processes nemesis browser tours packages distributed kubernetes simulation)
for step in "$@"; do
    [[ " ${STEPS[*]} ${BESIDE[*]} ${OPTIONAL[*]} " == *" $step "* ]] ||
        die "no step is called $step; there are ${STEPS[*]} ${BESIDE[*]} ${OPTIONAL[*]}"
done

[ $# -eq 0 ] || { STEPS=("$@") && BESIDE=(); }
# Relative ones begin where the caller is.
[ -z "${PINION_PROGRAMS:-}" ] || PINION_PROGRAMS=$(realpath -m -- "$PINION_PROGRAMS")
# Now, and not after the builds.
for step in "${STEPS[@]}" ${BESIDE[*]}; do
    case $step in checks | packages | distributed | kubernetes) need_venv "deploy/test.sh $step" ;; esac
done
setup
cd "$ROOT"
# A build from nothing keeps no state for later ones, which would make it longer. Cargo makes the folder in any case.
[ -n "$(ls -A "$TARGET/debug/incremental" 2>/dev/null)" ] || export CARGO_INCREMENTAL=0
LOGS=$TARGET/test-logs
mkdir -p "$LOGS"

run_steps() { # run_steps STEP...
    local step start
    for step in "$@"; do
        say "== $step"
        start=$SECONDS
        if ! "step_$step"; then
            say "== $step failed after $((SECONDS - start)) s"
            return 1
        fi
        say "== $step passed in $((SECONDS - start)) s"
    done
}

passed=0
for step in "${STEPS[@]}"; do
    run_steps "$step" || { printf '%d passed, 1 failed\n' "$passed" && exit 1; }
    passed=$((passed + 1))
done

# What a line prints is shown when it has ended.
lines=()
for i in "${!BESIDE[@]}"; do
    # shellcheck disable=SC2086
    run_steps ${BESIDE[i]} >"$LOGS/beside-$i.log" 2>&1 &
    lines+=($!)
done
failed=0
for i in "${!BESIDE[@]}"; do
    wait "${lines[i]}" || failed=$((failed + 1))
    cat "$LOGS/beside-$i.log"
    passed=$((passed + $(grep -c '^\[setup\] == .* passed in ' "$LOGS/beside-$i.log" || true)))
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
