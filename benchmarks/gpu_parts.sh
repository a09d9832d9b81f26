# The parts of a run of gpu.sh, which sources this: what is asked, in which order. The most telling comes first in each,
# so that a part that is cut short has it.

offline() { served "$1" 30 offline "${BATCH[@]}" --rounds "$ROUNDS"; }
online() { served "$1" 60 online "${ARRIVALS[@]}" --requests "$REQUESTS" --timings; }
# The trace at one scale of its times: less is heavier.
replay() { [ -z "$TRACE" ] || served "online_trace_$1" 160 online --trace "$TRACE" "${REPLAY[@]}" --scales "$1" --timings; }

# models NAME FAMILY [FLAG...]: makes the model once, so random that a greedy token is not only the one before it again.
models() {
    local name=$1 family=$2 part=$MODELS/$1.part
    shift 2
    MODEL=$MODELS/$name
    [ ! -d "$MODEL" ] || return 0
    rm -rf "$part"
    mkdir -p "$MODELS"
    sed -i "/^$PART make_$name /d" "$OUT/stages.txt"
    stage "make_$name" 90 "$HERE/xtask" make-model "$family" --out "$part" "$@" && mv "$part" "$MODEL"
}

gpt2() {
    if [ "$DRY" ]; then models gpt2 gpt2 --size tiny --deviation 0.2; else models gpt2 gpt2 --deviation 0.05; fi
}

# family NAME: its published shape in bf16; tiny in a dry run, and in `equality`, where the shape says little.
family() {
    if [ "$DRY" ] || [ "$PART" = equality ]; then models "$1_tiny" "$1" --size tiny --deviation 0.2; else models "$1" "$1" --dtype bf16; fi
}

# Whether the engine takes MODEL at all; what it does not take yet is skipped with its own words.
is_taken() { # is_taken NAME
    check "load_${PART}_$1" 60 load "$MODEL" && return 0
    grep -q 'not supported by the CUDA object\|CUDA engine takes' "$OUT/load_${PART}_$1.log" || return 1
    FAILED=$((FAILED - 1))
    note "load_${PART}_$1" skipped "$(last_words "$OUT/load_${PART}_$1.log")"
    return 1
}

# Each sweep by itself: a fault or a hang of one kernel takes no other along. What fails is looked at with NVIDIA's
# checker.
kernels() {
    local sweep checker
    checker=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
    for sweep in $("$HERE/cuda_check" "$OBJECT" sweeps); do
        check "kernels_$sweep" 25 kernels "$sweep" || [ -z "$checker" ] ||
            stage "memcheck_$sweep" 40 "$checker" --tool memcheck --error-exitcode 3 "$HERE/cuda_check" "$OBJECT" kernels "$sweep"
    done
}

# with_torch NAME SECONDS CHORE...: a chore of cuda_check on the Python's libtorch, if that is the one that it was built
# for. A dry run may find one beside the build.
with_torch() {
    local version name=$1 seconds=$2
    shift 2
    version=$(cat "$HERE/torch_version")
    if [ "$TORCH" = "$version" ] || ! ldd "$HERE/cuda_check_torch" | grep -q 'libtorch.*not found'; then
        stage "$name" "$seconds" "$HERE/cuda_check_torch" "$OBJECT" "$@"
    else
        note "$name" skipped "this needs torch $version, $PYTHON has ${TORCH:-none}"
    fi
}

greedy() { # greedy NAME: its tokens, read back and judged
    check "greedy_$1" 40 greedy "$MODEL" || return 0
    stage "greedy_read_$1" 10 "$PYTHON" "$HERE/gpu_reference.py" --model "$MODEL" --read "$OUT/greedy_$1.jsonl"
    reference "greedy_reference_$1" 60 --greedy "$OUT/greedy_$1.jsonl"
}

part_equality() {
    local name
    kernels
    gpt2 || return 0
    greedy gpt2
    check launches 40 launches "$MODEL"
    with_torch parity 60 parity "$MODEL"
    with_torch operators_gpt2 40 operators "$MODEL" f32
    for name in qwen3 llama; do
        # The operators are compared with the native backend: where that takes no model, there is nothing to compare with.
        if family "$name" && is_taken "$name"; then
            greedy "$name"
            with_torch "operators_$name" 40 operators "$MODEL" f32
        else
            note "operators_$name" skipped "the native backend has no model to compare with"
        fi
    done
}

part_gpt2() {
    local asked
    gpt2 || return 0
    check copy 20 copy
    check steps 40 steps "$MODEL"
    check rates 40 rates
    check phases 20 phases
    server graph
    offline offline
    online online
    replay 0.4
    replay 0.8
    replay 1.6
    stop_server
    reference baseline 60 --baseline
    check steps_sampled 25 steps "$MODEL" sampled
    check steps_nucleus 25 steps "$MODEL" nucleus
    check steps_bf16 25 steps "$MODEL" bf16
    for asked in logprobs masked penalised; do
        check "steps_$asked" 25 steps "$MODEL" "$asked"
        check "steps_${asked}_on_host" 25 steps "$MODEL" "$asked" host-sampler
    done
    check load 20 load "$MODEL"
}

part_families() {
    local name dtype=(--dtype bf16)
    [ -z "$DRY" ] || dtype=()
    check copy_families 20 copy
    for name in qwen3 llama; do
        family "$name" && is_taken "$name" || continue
        check "steps_$name" 60 steps "$MODEL" bf16
        with_torch "operators_bf16_$name" 60 operators "$MODEL" bf16
        server "$name" "${dtype[@]}"
        offline "offline_$name"
        stop_server
    done
}

# Switches of `cuda_check steps`, and of the service. Each round has every one of them, so that what the card does
# meanwhile (clocks, heat) is the same for all; one offline run in each is enough. So does each have the default again,
# CONTROLS times: what that seems to change is the noise, without which gpu_table.py names no winner.
CONTROLS=(again1 again2 again3)
STEP_SWITCHES=(fused dependent mixed-graphs no-graphs no-fused-norms no-fused-products plain-prefill first-algorithm)
SERVER_SWITCHES=(--decode=fused --cuda-dependent-launch --cuda-mixed-graphs --no-overlap --no-cuda-graphs
    --no-cuda-fused-norms --no-cuda-fused-products)

part_ablations() {
    local round switch ROUNDS=1
    gpt2 || return 0
    for ((round = 1; round <= PAIRS; round++)); do
        check "ablate_steps_base_$round" 25 steps "$MODEL"
        for switch in "${STEP_SWITCHES[@]}"; do
            check "ablate_steps_${switch}_$round" 25 steps "$MODEL" "$switch"
        done
        for switch in "${CONTROLS[@]}"; do
            check "ablate_steps_${switch}_$round" 25 steps "$MODEL"
        done
    done
    for ((round = 1; round <= PAIRS; round++)); do
        server "ablate_base_$round"
        offline "ablate_offline_base_$round"
        for switch in "${SERVER_SWITCHES[@]}"; do
            server "ablate_${switch#--}_$round" "$switch"
            offline "ablate_offline_${switch#--}_$round"
        done
        for switch in "${CONTROLS[@]}"; do
            server "ablate_${switch}_$round"
            offline "ablate_offline_${switch}_$round"
        done
    done
}

# Looks, and measures nothing: a profiled step is slower.
part_profiles() {
    local nsys report=$OUT/profiles/steps
    gpt2 || return 0
    mkdir -p "$OUT/profiles"
    nsys=$(PATH=$PATH:/usr/local/cuda/bin:/opt/nvidia/nsight-systems/bin command -v nsys)
    if [ -n "$nsys" ]; then
        stage nsys_steps 150 "$nsys" profile --force-overwrite=true --trace=cuda,nvtx,osrt --cuda-graph-trace=node --sample=none \
            --cpuctxsw=none --output="$report" "$HERE/cuda_check" "$OBJECT" steps "$MODEL"
        stage nsys_stats 90 "$nsys" stats --force-export=true --format=csv --output="$report" \
            --report=cuda_gpu_kern_sum,cuda_api_sum,cuda_gpu_mem_time_sum "$report.nsys-rep"
    else
        note nsys_steps skipped "there is no nsys on PATH, in /usr/local/cuda/bin or in /opt/nvidia/nsight-systems/bin"
    fi
    reference kineto 60 --trace "$OUT/profiles/transformers.json"
    stage manifest 10 "$PYTHON" "$HERE/gpu_table.py" "$OUT" manifest
}
