//! Every option, described once. `--help`, docs/CONFIGURATION.md, the environment names, the keys of the
//! config file and the checks of single values all come from [`OPTIONS`].
//!
//! The parser over this table is our own: a derive library stops at the first fault, knows nothing of the
//! environment's and the file's faults, and would make a second place where options are described.

use crate::table::{Group, Kind, Opt, Preset, choice};
use Group::*;
use Kind::*;
use Preset::*;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;
const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
const PEERS_MAX: u64 = pinion_protocol::limits::PEERS_PER_ROLE_MAX as u64;

/// The table, in the order of the documentation.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[Opt] = &[
    Opt { name: "model", group: Model, kind: Folder, preset: Required,
        help: "Hugging Face folder (config.json, tokenizer.json, model.safetensors) or GGUF file. ORG/NAME or \
               ORG/NAME@REV is pulled from the hub first; a local folder of that name takes precedence. `pinion serve DIR` \
               is short for it." },
    Opt { name: "hub-cache", group: Model, kind: Folder,
        preset: WorkedOut("HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub"),
        help: "Where models of the hub are kept, in the layout that transformers and vLLM share." },
    Opt { name: "hub-endpoint", group: Model, kind: Text, preset: WorkedOut("HF_ENDPOINT, else https://huggingface.co"),
        help: "The hub, or a mirror of it." },
    Opt { name: "hub-offline", group: Model, kind: Switch, preset: WorkedOut("HF_HUB_OFFLINE, else off"),
        help: "Take models of the hub from the cache alone; no connection is made." },
    Opt { name: "served-model-name", group: Model, kind: Text, preset: WorkedOut("the folder's name"),
        help: "Name that clients put into the `model` field." },
    Opt { name: "backend", group: Model, preset: Is("auto"),
        kind: Choice { accepted: &[choice("auto", &[]), choice("native", &[]), choice("torch", &[]), choice("fake", &[])],
                       refused: &[] },
        help: "`native`, Pinion's own kernels; `torch`, libtorch's operators alone, the slower reference; `fake`, a hash \
               without weights. `auto` is `native`, or `torch` on a GPU for what the CUDA object does not take." },
    Opt { name: "dtype", group: Model, preset: Is("auto"),
        kind: Choice {
            accepted: &[choice("auto", &[]), choice("fp32", &["float32", "float"]), choice("bf16", &["bfloat16"]),
                        choice("fp16", &["float16", "half"])],
            refused: &[] },
        help: "Type of activations and KV, and of weights but for --linear packed. `auto` is bf16 where the CPU multiplies it \
               faster than fp32 (amx_bf16, or AMD with avx512_bf16), else fp32; on a GPU see docs/GPU.md. fp16 is \
               for GPUs only." },
    Opt { name: "device", group: Model, preset: Is("auto"),
        kind: Choice { accepted: &[choice("auto", &[]), choice("cpu", &[]), choice("cuda", &["gpu"])], refused: &[] },
        help: "Where the model runs. `cuda` needs an NVIDIA GPU and, but for --backend torch, libpinion_cuda.so \
               (docs/GPU.md). `auto` is `cuda` where these are here, but `cpu` with --quantization int8 or int4, or --kv-dtype int8. \
               If the GPU cannot serve the model, `auto` warns, says why, and serves on the CPU. The CUDA engine \
               has not run on a GPU yet." },
    Opt { name: "cuda-object", group: Model, kind: Text,
        preset: WorkedOut("libpinion_cuda.so beside the program, or in ../cuda"),
        help: "The CUDA engine's shared object." },
    Opt { name: "pooling", group: Model, preset: Is("auto"),
        kind: Choice { accepted: &[choice("auto", &[]), choice("none", &[]), choice("last", &["lasttoken"]), choice("mean", &[])],
                       refused: &[(&["cls"], "the first token of a decoder sees nothing of the text"),
                                  (&["max"], "only the last token's output and the mean of all make a vector")] },
        help: "Serve a vector for each prompt (/v1/embeddings) instead of text: the output of its `last` token, or \
               the `mean` of the outputs of all. `auto` is what modules.json of sentence-transformers says, else \
               `none`. On the CPU with --backend native only." },
    Opt { name: "max-model-len", group: Model, kind: Number { min: 1, max: pinion_protocol::limits::CONTEXT_MAX as u64 },
        preset: WorkedOut("the model's context, if the cache holds it"),
        help: "Longest sequence in tokens, prompt and output together." },
    Opt { name: "seed", group: Model, kind: Number { min: 0, max: u64::MAX }, preset: Is("0"),
        help: "Source of the seeds of requests that name none." },

    Opt { name: "host", group: Http, kind: Address, preset: Is("127.0.0.1"),
        help: "Address to listen on; 0.0.0.0 or :: for all." },
    Opt { name: "port", group: Http, kind: Number { min: 0, max: 65535 }, preset: Is("8000"),
        help: "Port to listen on; 0 lets the kernel choose." },
    Opt { name: "max-inflight", group: Http, kind: Number { min: 1, max: pinion_protocol::limits::SLOTS_MAX as u64 },
        preset: Is("256"),
        help: "Requests that one frontend may have open; the next one gets 429 with Retry-After." },
    Opt { name: "body-bytes-max", group: Http, kind: Bytes { min: 4 * KIB, max: 16 * MIB },
        preset: WorkedOut("64 bytes per token of max-model-len, between 512 KiB and 4 MiB; 4 MiB if the model pools"),
        help: "Largest request body; a larger one gets 413." },
    Opt { name: "stream-buffer-bytes-max", group: Http, kind: Bytes { min: 4 * KIB, max: 64 * MIB }, preset: Is("256KiB"),
        help: "Bytes of text and logprobs that may wait for one slow reader; past it the request is cancelled." },
    Opt { name: "header-timeout", group: Http, kind: Duration { min_ms: 1, max_ms: HOUR }, preset: Is("10s"),
        help: "A request's head must be complete in this time." },
    Opt { name: "body-timeout", group: Http, kind: Duration { min_ms: 1, max_ms: HOUR }, preset: Is("30s"),
        help: "A request's body must be complete in this time." },
    Opt { name: "write-timeout", group: Http, kind: Duration { min_ms: 1, max_ms: HOUR }, preset: Is("30s"),
        help: "A write to a client that makes no progress for this long ends the connection." },
    Opt { name: "idle-timeout", group: Http, kind: Duration { min_ms: 1, max_ms: 24 * HOUR }, preset: Is("75s"),
        help: "A connection without a request is closed after this time." },
    Opt { name: "tool-call-parser", group: Http, preset: Is("auto"),
        kind: Choice {
            accepted: &[choice("auto", &[]), choice("hermes", &[]), choice("llama3_json", &["llama3-json"]),
                        choice("mistral", &[]), choice("qwen3_coder", &["qwen3_xml"]),
                        choice("pythonic", &["llama4_pythonic"]), choice("none", &[])],
            refused: &[] },
        help: "How the model writes tool calls where `tool_choice` leaves it to the model: `hermes` is \
               `<tool_call>` around a JSON object (Qwen too), `llama3_json` a bare JSON object, `mistral` what follows \
               `[TOOL_CALLS]`, `qwen3_coder` tags within `<tool_call>`, `pythonic` a list of calls as Python has them. `auto` goes by the marks in the model's chat template; `none` leaves calls in the text." },
    Opt { name: "reasoning-parser", group: Http, preset: Is("auto"),
        kind: Choice {
            accepted: &[choice("auto", &[]), choice("think", &["qwen3", "deepseek_r1"]), choice("none", &[])],
            refused: &[] },
        help: "How the model's reasoning is told from its answer in chats: `think`, it stands between `<think>` and \
               `</think>`, of which the prompt may have the first. `auto` is that where the model's chat template has \
               such marks; `none` leaves reasoning in the text." },
    Opt { name: "chat-template", group: Http, kind: Text, preset: Absent,
        help: "Jinja template by which chats become prompts, in place of all that the model folder has: a file, or the \
               template itself, which has braces. With tool-call-parser and reasoning-parser `auto` its marks count." },
    Opt { name: "generation-config", group: Http, preset: Is("auto"),
        kind: Choice { accepted: &[choice("auto", &[]), choice("none", &["vllm"])], refused: &[] },
        help: "How tokens are drawn for a request that does not say it: `auto`, as generation_config.json of the model \
               folder has it (temperature, top_k, top_p, min_p, repetition_penalty, max_new_tokens); `none`, as the API \
               has it. The tokens that end a text are taken from that file either way." },
    Opt { name: "strict-fields", group: Http, kind: Switch, preset: Is("false"),
        help: "Refuse generation requests with an unknown field; off, the answer names it in \
               X-Pinion-Ignored-Fields and /metrics counts it." },
    Opt { name: "fast-sse", group: Http, kind: Switch, preset: Is("true"),
        help: "Write stream chunks from a prefix prepared once per request; off, every chunk goes through the JSON \
               serialiser. The bytes are the same." },
    Opt { name: "stream-interval", group: Http,
        kind: Number { min: 1, max: pinion_protocol::limits::STREAM_INTERVAL_MAX as u64 }, preset: Is("1"),
        help: "Tokens of a stream that leave together, or fewer once they have 512 bytes: fewer and larger chunks. The \
               first text leaves at once, the last with the end; the text is the same." },
    Opt { name: "api-key", group: Http, kind: Secrets, preset: Absent,
        help: "Keys of which a client must send one as `Authorization: Bearer KEY`; without any, no client needs one. \
               Can be given several times, or as a list with commas. Every user of the machine can see a flag: \
               better use PINION_API_KEY or the config file." },
    Opt { name: "fair-share", group: Http, preset: Is("off"),
        kind: Choice { accepted: &[choice("off", &[]), choice("key", &[]), choice("user", &[])], refused: &[] },
        help: "Which requests form a tenant for fair sharing: `off`, there are no tenants; `key`, each API key is \
               served the same number of tokens while it has requests waiting; `user`, each `user` of each key is." },
    Opt { name: "api-key-weights", group: Http, kind: Text, preset: Absent,
        help: "With fair-share: the parts of the API keys, as whole numbers from 1 to 1000 with commas, in the order \
               of the keys; a key of weight 2 is served twice the tokens of one of weight 1." },
    Opt { name: "cors-origin", group: Http, kind: Origins, preset: Absent,
        help: "Web origins whose pages may use the API from a browser, like https://example.org, or `*` for all. Can \
               be given several times, or as a list with commas. Off, no browser lets a foreign page read an answer." },
    Opt { name: "allowed-hosts", group: Http, kind: Hosts, preset: Absent,
        help: "Host names that requests may name besides the local ones (localhost, 127.0.0.0/8, [::1]), like \
               llm.example.org or *.example.org, or `*` for every name. Needed on loopback without a key, behind a proxy \
               that passes Host on; enforced wherever it is given. Can be given several times, or as a list with commas." },
    Opt { name: "root-path", group: Http, kind: Text, preset: Absent,
        help: "Prefix of the paths of requests behind a proxy that does not remove it, like /llm. Requests are \
               answered with the prefix and without it, and /openapi.json names it." },
    Opt { name: "keep-alive", group: Http, kind: Duration { min_ms: 0, max_ms: HOUR }, preset: Is("15s"),
        help: "A stream of events that was silent for this long gets a comment line, so that nothing on the way takes \
               it for dead; 0s sends none." },
    Opt { name: "responses-store-bytes", group: Http, kind: Bytes { min: 0, max: 4 * GIB }, preset: Is("64MiB"),
        help: "Memory of each frontend for answers of /v1/responses, which clients read again and go on from \
               (previous_response_id); the oldest give way. 0 keeps none." },
    Opt { name: "responses-ttl", group: Http, kind: Duration { min_ms: SECOND, max_ms: 24 * HOUR }, preset: Is("1h"),
        help: "An answer of /v1/responses is kept for at most this time." },
    Opt { name: "metrics-compat", group: Http, preset: Is("vllm"),
        kind: Choice { accepted: &[choice("vllm", &[]), choice("none", &[])], refused: &[] },
        help: "Names on /metrics besides `pinion_*`: `vllm` adds the `vllm:*` families that dashboards, autoscalers \
               and the Kubernetes inference gateway look for." },
    Opt { name: "ui", group: Http, kind: Switch, preset: Is("true"),
        help: "Serve the pages for people: chat, completion and the service live at /, the API at /docs. They need no key; \
               what they call does. Off, both are 404." },

    Opt { name: "max-num-seqs", group: Engine,
        kind: Number { min: 1, max: pinion_protocol::limits::STEP_EVENTS_MAX as u64 }, preset: Is("64"),
        help: "Sequences in one step." },
    Opt { name: "max-num-batched-tokens", group: Engine, kind: Number { min: 1, max: 1 << 20 }, preset: Is("512"),
        help: "Tokens computed in one step, prompt chunks and decodes together; at least max-num-seqs. More finishes \
               long prompts sooner; less keeps the gaps between the tokens of running streams short." },
    Opt { name: "block-size", group: Engine, kind: Number { min: 1, max: pinion_protocol::limits::BLOCK_TOKENS_MAX as u64 },
        preset: Is("16"),
        help: "Tokens in one KV block." },
    Opt { name: "kv-cache-tokens", group: Engine, kind: Number { min: 1, max: 1 << 32 },
        preset: WorkedOut("max-num-seqs sequences of min(max-model-len, 1024) tokens, and at least one of \
                           max-model-len, within kv-cache-memory-share"),
        help: "Size of the KV cache in tokens. Give this or kv-cache-bytes." },
    Opt { name: "kv-cache-bytes", group: Engine, kind: Bytes { min: 1, max: 64 * 1024 * GIB },
        preset: WorkedOut("follows from kv-cache-tokens"),
        help: "Size of the KV cache in bytes. Give this or kv-cache-tokens." },
    Opt { name: "kv-cache-memory-share", group: Engine, kind: Share, preset: Is("0.25"),
        help: "Share of the memory (the machine's, or the cgroup's limit) that a KV cache without a given size may \
               take." },
    Opt { name: "command-budget", group: Engine, kind: Number { min: 0, max: 65536 }, preset: Is("64"),
        help: "Requests that the engine takes in between two steps; 0 takes in all that are there." },
    Opt { name: "fill-to-target", group: Engine, kind: Switch, preset: Is("true"),
        help: "Take in more than command-budget while the engine has fewer than max-num-seqs requests, up to that \
               many." },
    Opt { name: "prefix-cache", group: Engine, kind: Switch, preset: Is("true"),
        help: "Keep the KV blocks of what was computed, so that requests that begin alike compute the rest only. Kept \
               blocks give way as soon as a running request needs memory." },
    Opt { name: "prefix-partial", group: Engine, kind: Switch, preset: Is("true"),
        help: "With prefix-cache: where requests part in the middle of a block, or a prompt ends there, the later one \
               gets a copy of the beginning; off, it computes the block again." },
    Opt { name: "prefix-wait", group: Engine, kind: Switch, preset: Is("true"),
        help: "With prefix-cache: a request that would compute the same as one whose prompt is being computed, half of what \
               it lacks at least and no less than a block, waits for that one's first token and takes it from the cache, \
               like the `n` choices of a prompt; off, each computes its own." },
    Opt { name: "window-kv", group: Engine, kind: Switch, preset: Is("true"),
        help: "Layers that see a window of tokens only keep the KV of that window, on a CPU, where this makes room for more \
               tokens; off, they keep the KV of whole contexts, as all others do." },
    Opt { name: "admission", group: Engine, preset: Is("fifo"),
        kind: Choice { accepted: &[choice("fifo", &[]), choice("pack", &[]), choice("shortest", &[]),
                                   choice("deadline", &[])],
                       refused: &[(&["priority"], "priorities need no policy of their own: the field `priority` \
                                                   works with each; use fifo, pack, shortest or deadline")] },
        help: "Which waiting request goes next: `fifo`, the first to arrive; `pack`, the shortest of the first 64; \
               `shortest`, the shortest of all, where later arrivals count as longer; `deadline`, the one whose first \
               token is due first (ttft-target). No request is overtaken more than 256 times." },
    Opt { name: "ttft-target", group: Engine, kind: Duration { min_ms: 1, max_ms: HOUR }, preset: Is("200ms"),
        help: "With `admission deadline`: the first token of a prompt of up to 256 tokens is due this long after its \
               arrival; longer prompts have proportionally more." },
    Opt { name: "prefill-chunk-size", group: Engine, kind: Number { min: 1, max: 1 << 20 },
        preset: WorkedOut("no limit but max-num-batched-tokens"),
        help: "Most prompt tokens of one request in one step." },
    Opt { name: "prefill-max-batch-size", group: Engine, kind: Number { min: 1, max: 1 << 20 },
        preset: WorkedOut("no limit but max-num-seqs"),
        help: "Most requests with prompt tokens in one step." },
    Opt { name: "prefill-priority-threshold", group: Engine, kind: Number { min: 1, max: 1 << 20 },
        preset: WorkedOut("never: decodes come first"),
        help: "Requests in prefill, waiting ones too, that get tokens before decodes do, four steps in a row at most." },
    Opt { name: "step-time-ms", group: Engine, kind: StepTime { min_us: 100, max_us: 60_000_000 }, preset: Is("off"),
        help: "Time that a step with decode rows may take, which bounds the gap between a stream's tokens: prompt tokens join \
               it, at least 32, while the time predicted from earlier steps allows. `auto` allows twice that of the decode \
               rows alone. max-num-batched-tokens and prefill-chunk-size limit every step, also one without decode rows." },
    Opt { name: "overlap", group: Engine, kind: Switch,
        preset: WorkedOut("on with the CUDA object; else off: a CPU's step takes a hundred times what is between two"),
        help: "Launch each step before the tokens of the one before are read, so that planning and publishing take no \
               time from the model. The tokens are the same; a request that ends by a stop costs one row more, and \
               one that arrives under load waits for one step more." },
    Opt { name: "speculative", group: Engine, preset: Is("off"),
        kind: Choice { accepted: &[choice("off", &[]), choice("ngram", &["prompt-lookup"])],
                       refused: &[(&["draft_model", "eagle", "eagle3", "medusa", "mtp"],
                                   "no other model drafts tokens here; use ngram")] },
        help: "Propose what a text repeats of its prompt or of itself (`ngram`) as its next tokens, and verify several of \
               them in one step: the tokens are the same, greedy or drawn under a seed, as far as a row's result does not \
               depend on the rows beside it (`--linear packed`). Proposals grow while they are right, stop for a time where \
               they do not pay, and take at most 8 rows of a step. Requests with a grammar propose nothing. On the CPU with \
               --backend native." },
    Opt { name: "engine-threads", group: Engine, kind: Number { min: 1, max: 1024 },
        preset: WorkedOut("one per physical core that the CPU plan gives the engine; 1 for the fake backend"),
        help: "Threads of the model's kernels; on a GPU, of the conversion of its weights at start." },
    Opt { name: "thread-cap", group: Engine, kind: Switch, preset: Is("true"),
        help: "Limit the engine's threads to the CPUs that the CPU plan gives it. Off, it has as many as \
               engine-threads says, or one for each CPU of the machine, as a program that sets no number of threads." },
    Opt { name: "linear", group: Engine, preset: Is("auto"),
        kind: Choice { accepted: &[choice("auto", &[]), choice("packed", &[]), choice("onednn", &[]), choice("plain", &[])],
                       refused: &[] },
        help: "CPU: products of weights that are not quantised. `packed` is Pinion's own: weights stay in the type that they \
               have in the file (with --dtype bf16 in bf16), and a row's result does not depend on the rows beside it. \
               `onednn` converts them to --dtype and reorders them once at load, `plain` only converts them. `auto` is \
               `packed` for weights of 16 bits computed in fp32, which halves the bytes that a step reads, and for --dtype \
               bf16 on a CPU with avx512_bf16 and no AMX; else `onednn`." },
    Opt { name: "quantization", group: Engine, preset: Is("checkpoint"),
        kind: Choice { accepted: &[choice("checkpoint", &["auto"]), choice("none", &[]), choice("int8", &[]),
                                   choice("int4", &[])],
                       refused: &[(&["awq", "gptq", "fp8", "compressed-tensors"],
                                   "a checkpoint says itself how it is quantised; leave the option out"),
                                  (&["bitsandbytes"], "checkpoints of bitsandbytes are not read")] },
        help: "CPU: which weights are integers in memory. `checkpoint`: those that a quantised checkpoint has in a form \
               that the products take without loss; all others are floating point, as with `none`. `int8` and `int4`: \
               all, quantised while they are loaded, from a quantised checkpoint too: `int8` with a scale for each \
               output, `int4` in groups of 128 (64 or 32 where the width is not divisible) with the head in 8 bits. \
               Beside integers activations are quantised to 8 bits for each token. docs/MODELS.md has the loss of each." },
    Opt { name: "kv-dtype", group: Engine, preset: Is("auto"),
        kind: Choice { accepted: &[choice("auto", &[]), choice("int8", &[])],
                       refused: &[(&["fp8", "fp8_e4m3", "fp8_e5m2"], "K and V in 8 bits are integers here: int8"),
                                  (&["bf16", "bfloat16", "fp32", "float32", "fp16", "float16"],
                                   "K and V have the type of the activations: --dtype")] },
        help: "CPU: keys and values in memory. `auto` has the type of the activations. `int8` has 8 bits for each number and \
               4 bytes for each token, layer and head beside them, so that a cache of the same size holds about 3.8 \
               times the tokens with --dtype fp32 and 1.9 times with bf16. It costs accuracy: docs/MODELS.md." },
    Opt { name: "attention", group: Engine, preset: Is("vector"),
        kind: Choice { accepted: &[choice("vector", &[]), choice("twin", &[])], refused: &[] },
        help: "Attention kernel: `vector`, or its plain `twin` for comparison." },
    Opt { name: "split-contexts", group: Engine, kind: Switch, preset: Is("true"),
        help: "CPU: the attention of a generated token that sees more than 256 positions is summed in spans, which the \
               engine's threads share where there are few rows and KV heads; off, a thread for each row and KV head. The \
               order of the sums, and so last bits, differ between the two, and with neither by threads or other rows." },
    Opt { name: "thread-team", group: Engine, kind: Switch, preset: Is("true"),
        help: "CPU: where every product is packed or quantised, a step's kernels run on threads of the engine's own, which take \
               over each other's unfinished work; off, on libgomp's, as beside oneDNN's products." },
    Opt { name: "parallel-sampling", group: Engine, kind: Switch, preset: Is("false"),
        help: "CPU: a step's tokens are drawn on all of the engine's threads, each row on one of them, where there are enough \
               rows; off, on one thread. The tokens are the same. Its effect on a service has not been measured." },
    Opt { name: "cuda-graphs", group: Engine, kind: Switch, preset: Is("true"),
        help: "CUDA: replay a graph captured before ready for each decode step; off, every kernel is launched by itself." },
    Opt { name: "cuda-mixed-graphs", group: Engine, kind: Switch, preset: Is("false"),
        help: "CUDA: replay graphs captured before ready for the layers of steps with prompt chunks of up to 1024 tokens in \
               all, with decode rows or without, in fp16 and bf16. It has not been measured." },
    Opt { name: "cuda-dependent-launch", group: Engine, kind: Switch, preset: Is("false"),
        help: "CUDA: a step's kernels begin before the ones ahead of them have ended, ask for their weights and then wait \
               (programmatic dependent launch), on sm_90 and newer. It has not been measured." },
    Opt { name: "cuda-fused-norms", group: Engine, kind: Switch, preset: Is("true"),
        help: "CUDA: a layer norm adds the residual sum before it in one kernel; off, a kernel for each." },
    Opt { name: "cuda-fused-products", group: Engine, kind: Switch, preset: Is("true"),
        help: "CUDA: a product adds its bias and applies its activation; off, a kernel for each." },
    Opt { name: "cuda-shaping", group: Engine, kind: Switch, preset: Is("true"),
        help: "CUDA: penalties, logit biases and banned ids are applied by the device's sampler; off: the host does it, \
               and the step waits for the host." },
    Opt { name: "cuda-logprobs", group: Engine, kind: Switch, preset: Is("true"),
        help: "CUDA: logprobs of generated tokens are computed on the device and come with the tokens; off: the host \
               does it from a copy of the row of logits, and the step waits for the host." },
    Opt { name: "cuda-masks", group: Engine, kind: Switch, preset: Is("true"),
        help: "CUDA: what a grammar allows goes to the device, a bit for each token, and is applied by its sampler; off, such \
               rows of logits are copied to the host and sampled there." },
    Opt { name: "cuda-gemm", group: Engine, preset: Is("measured"),
        kind: Choice { accepted: &[choice("measured", &[]), choice("heuristic", &[])], refused: &[] },
        help: "CUDA: which of cuBLASLt's algorithms computes products of more than eight rows: the quickest of eight, \
               `measured` for each shape before ready, or its own first choice, by `heuristic`." },
    Opt { name: "torch-kernels", group: Engine, preset: Is("auto"),
        kind: Choice { accepted: &[choice("auto", &[]), choice("on", &[]), choice("off", &[])], refused: &[] },
        help: "With --backend torch: attention, the append to the KV cache and the sampler are the CUDA object's kernels, on \
               libtorch's stream; `off`, libtorch's operators and the host's sampler. `auto` is `on` on a GPU where the \
               object is there and takes the model's heads. On the CPU `on` is for the emulated object of the tests. It has \
               not run on a GPU yet." },
    Opt { name: "prefill-attention", group: Engine, preset: Is("auto"),
        kind: Choice { accepted: &[choice("auto", &[]), choice("sdpa", &[]), choice("plain", &[])], refused: &[] },
        help: "CUDA: attention of prompt chunks: `auto` is the tensor cores where type and head size allow, `plain` the \
               decode kernel for each token; so with --backend torch and its kernels. Without these: `sdpa` is scaled_dot_product_attention, \
               `plain` products and a softmax in fp32, `auto` is `sdpa` but for models that cap their scores." },
    Opt { name: "decode", group: Engine, preset: Is("graph"),
        kind: Choice { accepted: &[choice("graph", &[]), choice("fused", &[])], refused: &[] },
        help: "CUDA: decode steps of up to eight rows: `graph` is a captured graph of kernels (see cuda-graphs), `fused` one \
               kernel for the whole step that stays on the GPU and fetches weights ahead. `fused` has not been measured." },
    Opt { name: "fake-step-us", group: Engine, kind: Number { min: 0, max: 60_000_000 }, preset: Is("0"),
        help: "Fake backend: time of one step, in µs." },
    Opt { name: "fake-prefill-us-per-token", group: Engine, kind: Number { min: 0, max: 1_000_000 }, preset: Is("0"),
        help: "Fake backend: time added to a step per prompt token, in µs." },
    Opt { name: "fake-fatal-token", group: Engine, kind: Number { min: 0, max: u32::MAX as u64 }, preset: Absent,
        help: "Fake backend: a prompt with this token kills the engine's process, as a broken kernel would. For drills." },

    Opt { name: "frontends", group: Processes, kind: Number { min: 1, max: PEERS_MAX }, preset: Is("1"),
        help: "Frontend processes." },
    Opt { name: "tokenizers", group: Processes, kind: Number { min: 1, max: PEERS_MAX }, preset: Is("1"),
        help: "Tokenizer processes." },
    Opt { name: "detokenizers", group: Processes, kind: Number { min: 1, max: PEERS_MAX }, preset: Is("1"),
        help: "Detokenizer processes." },
    Opt { name: "pin", group: Processes, kind: Switch,
        preset: WorkedOut("on, unless a cgroup quota grants less time than the allowed CPUs have: then other \
                           containers run on the same cores"),
        help: "Pin every process to the CPUs of the plan. Off, no thread is pinned and none spins." },
    Opt { name: "jitter-control", group: Processes, kind: Switch, preset: Is("true"),
        help: "Before a role is ready: bring the rings and the KV cache into memory, lock all of it where RLIMIT_MEMLOCK \
               allows (its ready line says so), and run the model over the shapes to come. Off, all of that happens \
               under traffic. The CUDA object runs the shapes in any case: it captures graphs and measures products \
               with them." },
    Opt { name: "pause-warn-ms", group: Processes, kind: Number { min: 0, max: HOUR }, preset: Is("100"),
        help: "A turn of a role's loop that takes this long, in ms, counts as a pause; a line in the log, at most one in \
               10 s, says how long it was and how many page faults and context switches there were. Sleeping without \
               work is no pause, nor is waiting for the model. 0 watches nothing." },
    Opt { name: "in-process", group: Processes, kind: Switch, preset: Is("off"),
        help: "Run every role as a thread of one process, over the same rings: the control of an ablation. A role that \
               crashes then takes the others along." },
    Opt { name: "sandbox", group: Processes, kind: Switch,
        preset: WorkedOut("on, but with --in-process, --profile and --nvtx"),
        help: "Every role gives up what its work does not need: capabilities, other files, most system calls. Off for \
               debuggers and for profilers that are started from outside." },
    Opt { name: "ipc", group: Processes, preset: Is("ring"),
        kind: Choice { accepted: &[choice("ring", &[]), choice("channel", &[])], refused: &[] },
        help: "What carries records between the roles: `ring` in shared memory, or `channel`, which is ipc-channel over \
               sockets: slower, and a role that does not read can block another. It is the control of an ablation. KV events \
               always have a ring." },
    Opt { name: "cpus-frontend", group: Processes, kind: Cpus, preset: WorkedOut("by the CPU plan"),
        help: "CPUs of the frontends, like 2-3,8. Whole cores; no CPU in two roles' sets." },
    Opt { name: "cpus-tokenizer", group: Processes, kind: Cpus, preset: WorkedOut("by the CPU plan"),
        help: "CPUs of the tokenizers." },
    Opt { name: "cpus-engine", group: Processes, kind: Cpus, preset: WorkedOut("by the CPU plan"),
        help: "CPUs of the engine." },
    Opt { name: "cpus-detokenizer", group: Processes, kind: Cpus, preset: WorkedOut("by the CPU plan"),
        help: "CPUs of the detokenizers." },
    Opt { name: "cpus-events", group: Processes, kind: Cpus, preset: WorkedOut("those of the first tokenizer"),
        help: "CPUs of the process that publishes KV events." },
    Opt { name: "spin-us", group: Processes, kind: Number { min: 0, max: 10_000 }, preset: Is("20"),
        help: "How long a role that owns its cores looks for work before it sleeps, in µs. A role that shares a core \
               sleeps at once. With the CUDA object the engine polls for the end of a step for up to 20 ms instead, \
               unless this is 0 or its core is shared." },
    Opt { name: "step-spin", group: Processes, kind: Switch,
        preset: WorkedOut("on with pinned processes, unless a cgroup quota counts the time"),
        help: "The engine's threads spin for up to about 0.1 ms at the parallel regions of a step before they sleep; its own \
               threads on its own cores, 1 ms. Off, each of a step's 50 to 60 regions ends in a sleep and begins with a wake-up." },

    Opt { name: "timeline", group: Observe, kind: Switch, preset: Is("on"),
        help: "Stamp every request's stages and record what every process does in a ring of its own, 1 MiB each: what \
               `pinion trace`, `timings` and /debug/slow show. Off is for measuring what that costs; the stamps that \
               recovery reads stay." },
    Opt { name: "nvtx", group: Observe, kind: Switch, preset: Is("off"),
        help: "Show the same spans to NVIDIA's tools as NVTX ranges: to the one that started the service \
               (NVTX_INJECTION64_PATH, as nsys sets it), else through libnvToolsExt.so.1." },
    Opt { name: "profile", group: Observe, preset: Is("none"),
        kind: Choice { accepted: &[choice("none", &[]), choice("nsys", &[]), choice("perf", &[]), choice("torch", &[])], refused: &[] },
        help: "Start every role by `nsys profile` or `perf record`, which must be on PATH, or have the engine trace its \
               libtorch operations. Nothing is recorded before `POST /start_profile`; docs/PROFILING.md." },
    Opt { name: "profile-dir", group: Observe, kind: Text, preset: Is("profiles"),
        help: "Folder for what the profiler writes: <profiler>/<backend>/<role>/ and profile_manifest.json." },
    Opt { name: "record", group: Observe, kind: Text, preset: Absent,
        help: "File in which the engine writes down every arrival, parameter, cancel, batch and token, to be replayed by \
               `pinion-engine replay FILE`. It holds the clients' prompts." },

    Opt { name: "otlp-traces-endpoint", group: Observe, kind: Text,
        preset: WorkedOut("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, else OTEL_EXPORTER_OTLP_ENDPOINT, else none"),
        help: "Send a span for each request, with one for each of its stages, to an OpenTelemetry collector: \
               http://HOST:PORT, to which /v1/traces is added (OTLP over HTTP, JSON). `none` sends nothing, whatever the \
               variables say. Never a text or a key; docs/OPERATIONS.md." },
    Opt { name: "kv-events", group: Observe, kind: Text, preset: Absent,
        help: "Publish what the prefix cache holds over ZeroMQ, in vLLM's format, for routers that send a request where its \
               prefix is: tcp://ADDRESS:PORT or tcp://*:PORT, to which subscribers connect. The events have the token ids \
               of prompts and no key is asked for: choose a private address." },
    Opt { name: "kv-events-replay", group: Observe, kind: Text, preset: Absent,
        help: "With kv-events: endpoint of the same form at which a subscriber asks for batches that it has missed." },
    Opt { name: "kv-events-topic", group: Observe, kind: Text, preset: WorkedOut("empty"),
        help: "With kv-events: the first frame of each message, by which subscribers choose. Empty, as with vLLM, it \
               reaches those that choose none. llm-d needs `kv@POD@MODEL`, where MODEL is the name in requests." },

    Opt { name: "start-timeout", group: Lifecycle, kind: Duration { min_ms: 1, max_ms: HOUR }, preset: Is("120s"),
        help: "All roles must be ready in this time." },
    Opt { name: "drain-delay", group: Lifecycle, kind: Duration { min_ms: 0, max_ms: HOUR }, preset: Is("0s"),
        help: "After the first SIGTERM or Ctrl-C, /ready says no at once while new requests are still served for this long; \
               then the drain begins. Behind a load balancer: longer than it takes to notice." },
    Opt { name: "drain-timeout", group: Lifecycle, kind: Duration { min_ms: 0, max_ms: HOUR }, preset: Is("30s"),
        help: "Open requests may finish for this long after the first SIGTERM or Ctrl-C and --drain-delay; the second signal stops at once." },
    Opt { name: "restart-backoff", group: Lifecycle, kind: Duration { min_ms: 0, max_ms: HOUR }, preset: Is("50ms"),
        help: "Wait before the second restart of a role within a minute; the first is at once, and the wait doubles with each \
               further one, up to 5 s." },
    Opt { name: "restart-limit", group: Lifecycle, kind: Number { min: 0, max: 100_000 }, preset: Is("10"),
        help: "Restarts of one role within a minute before the service gives up; those of the process that publishes KV \
               events do not count." },
    Opt { name: "resume", group: Lifecycle, kind: Switch, preset: Is("true"),
        help: "Requests that a dying role held go on from their last token when its successor serves; without it they end \
               with the error `role_restarted`. For that a frontend keeps the prompts of open requests." },
    Opt { name: "spare-engine", group: Lifecycle, kind: Switch, preset: Is("true"),
        help: "Keep a second engine process that has loaded its libraries and nothing else: it takes the place of one that \
               dies. None with --in-process or --profile." },
    Opt { name: "stuck-timeout", group: Lifecycle, kind: Duration { min_ms: 0, max_ms: HOUR }, preset: Is("60s"),
        help: "A role whose loop has not turned for this long is killed and restarted; 0 never. Must be longer than the \
               longest step of the model: an engine gives a step up by itself after 120 s, or after this if it is \
               longer, with 0 after a day." },
    Opt { name: "log", group: Lifecycle, kind: Text, preset: Is("info"),
        help: "What is logged: a level, or a filter like `info,pinion_engine=debug`." },
    Opt { name: "access-log", group: Lifecycle, kind: Switch, preset: Is("false"),
        help: "Log one line for each HTTP request at its end, at the level info: method, path, status, bytes, tokens, \
               times, finish reason, request id; never a text or a key." },
    Opt { name: "log-format", group: Lifecycle, preset: Is("auto"),
        kind: Choice { accepted: &[choice("auto", &[]), choice("text", &[]), choice("json", &[])], refused: &[] },
        help: "Form of log lines: text has a line of key=value for each event, json an object. auto is text, but short \
               coloured lines where standard error is a terminal (no colours with NO_COLOR or TERM=dumb)." },
    Opt { name: "config", group: Lifecycle, kind: File, preset: Absent,
        help: "TOML file with options as top-level keys, named like the flags without the dashes in front." },
];

/// `PINION_*` variables that belong to the scripts in deploy/ and to the tests, and are no option of the service.
pub(crate) const SCRIPT_VARIABLES: &[&str] = &[
    "PINION_BUILD",
    "PINION_CACHE",
    "PINION_CUBLASLT",
    "PINION_PROGRAMS",
    "PINION_PYTHON",
    "PINION_SIM_RUNS",
    "PINION_SIM_SEED",
    "PINION_TEST_SEED",
    "PINION_TORCH_CUDA",
];

/// The option of this name.
pub(crate) fn find(name: &str) -> Option<&'static Opt> {
    OPTIONS.iter().find(|option| option.name == name)
}
