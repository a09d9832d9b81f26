//! Gauges on a role's status page: one shared page per process, written by that process, read by the
//! launcher (heartbeat) and the frontends (metrics). The launcher's own page carries ring depths.

/// A word on the status page of a spawned role. Words not listed for a role stay 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Gauge {
    /// CLOCK_MONOTONIC ns of the role's last turn of its loop.
    HeartbeatNs = 0,
    /// [`Phase`] as a number.
    Phase = 1,
    /// Written by the *launcher*: number of control messages sent to the role so far.
    ControlSequence = 2,
    /// Records dropped because their generation or epoch was stale.
    StaleRecords = 3,
    /// Records that failed their check.
    MalformedRecords = 4,
    /// Times the role slept on its doorbell.
    Sleeps = 5,
    /// Control messages the role has taken; the launcher never has more than a few outstanding.
    ControlSeen = 6,
    /// Lines of the process's log that were dropped, because standard error was not read in time or could not be
    /// written.
    LogLinesDropped = 7,
    /// Edges of the role that it found corrupt and that have not been replaced yet, but for one to an optional role.
    CorruptEdges = 22,
    /// Engine: 1 once its recording (`--record`) has ended before the service did, because the file could not be
    /// written.
    RecordingEnded = 23,
    /// Engine: steps run.
    Steps = 8,
    /// Engine: KV blocks held by requests.
    KvBlocksUsed = 9,
    /// Engine: KV blocks in the pool.
    KvBlocksTotal = 10,
    /// Engine: requests in the running set.
    RequestsRunning = 11,
    /// Engine: requests admitted and not yet running.
    RequestsWaiting = 12,
    /// Engine: prompt tokens computed.
    PromptTokens = 13,
    /// Engine: tokens generated.
    GeneratedTokens = 14,
    /// Engine: requests finished, any reason.
    RequestsFinished = 15,
    /// Engine: preemptions.
    Preemptions = 16,
    /// Engine: age in ns of the oldest waiting request at the last step.
    OldestWaitingNs = 17,
    /// Engine: time of the last step in ns.
    LastStepNs = 18,
    /// Engine: KV blocks that no request holds and whose contents can still be found.
    KvBlocksCached = 19,
    /// Engine: tokens that were looked for in the prefix cache.
    PrefixQueryTokens = 20,
    /// Engine: tokens that were found there.
    PrefixHitTokens = 21,
    /// Tokenizer: requests encoded.
    Encoded = 24,
    /// Detokenizer: text deltas sent.
    Deltas = 32,
    /// Detokenizer: decode states held.
    DecodeStates = 33,
    /// Events: batches published since the start of the service, which is the number of the next one. It outlives the
    /// process.
    KvEventBatches = 34,
    /// Events: readers that are connected and have subscribed.
    KvEventSubscribers = 35,
    /// Events: times that the whole cache was told to one reader: a late one, or one that had not read for too long.
    KvEventSnapshots = 36,
    /// Events: times that a reader's queue was full, so that what waited in it was dropped.
    KvEventOverflows = 37,
    /// Events: connections that the role closed or refused.
    KvEventClosed = 38,
    /// Turns of the role's loop that took too long.
    Pauses = 40,
    /// Time of all of them in ns.
    PauseNs = 41,
    /// Page faults of the role so far that needed no disk.
    MinorFaults = 42,
    /// Page faults of the role so far that did.
    MajorFaults = 43,
    /// Times the role has given up its CPU to wait.
    VoluntarySwitches = 44,
    /// Times the kernel has taken the CPU from the role.
    InvoluntarySwitches = 45,
    /// 1 while the process's log loses lines: one was dropped, and none has been written since.
    LogLosing = 46,
    /// Engine on a GPU: bytes of device memory that the weights take.
    DeviceWeightBytes = 48,
    /// Engine on a GPU: bytes of device memory that the KV cache takes.
    DeviceCacheBytes = 49,
    /// Engine on a GPU: bytes of device memory taken for all else.
    DeviceActivationBytes = 50,
    /// Engine on a GPU: bytes of page-locked host memory.
    DeviceStagingBytes = 51,
    /// Engine on a GPU: bytes of device memory that were free when it was ready.
    DeviceFreeBytes = 52,
    /// [`Reading`] as a number.
    Reading = 53,
    /// Engine: requests whose grammar is being compiled; they are not among the waiting ones.
    RequestsDeferred = 55,
    /// Times that a process of the role has ended because it reached its memory limit.
    MemoryLimitHits = 54,
    /// Engine with a step-time budget: the budget of the last step in ns; 0 if it had none, or its cost is not known.
    StepBudgetNs = 56,
    /// Engine with a step-time budget: steps whose time was predicted.
    PredictedSteps = 57,
    /// Engine with a step-time budget: predicted time of those steps in ns.
    PredictedStepsNs = 58,
    /// Engine with a step-time budget: what those steps took in ns.
    PredictedStepsTookNs = 59,
    /// Engine with a step-time budget: sum of the differences between the two, without sign, in ns.
    PredictionErrorNs = 60,
    /// Engine with a step-time budget: prompt tokens that a step had room for and a later one computed, for its time.
    PromptTokensDeferred = 61,
    /// Engine with speculation: drafts of next tokens that steps have verified.
    Drafts = 62,
    /// Engine with speculation: those of them that were sampled.
    AcceptedDrafts = 63,
    /// Engine: steps of at most 1 tokens and more than the bucket before holds.
    StepsTo1 = 64,
    /// Engine: steps of at most 8 tokens and more than the bucket before holds.
    StepsTo8 = 65,
    /// Engine: steps of at most 16 tokens and more than the bucket before holds.
    StepsTo16 = 66,
    /// Engine: steps of at most 32 tokens and more than the bucket before holds.
    StepsTo32 = 67,
    /// Engine: steps of at most 64 tokens and more than the bucket before holds.
    StepsTo64 = 68,
    /// Engine: steps of at most 128 tokens and more than the bucket before holds.
    StepsTo128 = 69,
    /// Engine: steps of at most 256 tokens and more than the bucket before holds.
    StepsTo256 = 70,
    /// Engine: steps of at most 512 tokens and more than the bucket before holds.
    StepsTo512 = 71,
    /// Engine: steps of at most 1024 tokens and more than the bucket before holds.
    StepsTo1024 = 72,
    /// Engine: steps of at most 2048 tokens and more than the bucket before holds.
    StepsTo2048 = 73,
    /// Engine: steps of at most 4096 tokens and more than the bucket before holds.
    StepsTo4096 = 74,
    /// Engine: steps of at most 8192 tokens and more than the bucket before holds.
    StepsTo8192 = 75,
    /// Engine: steps of at most 16384 tokens and more than the bucket before holds.
    StepsTo16384 = 76,
    /// Engine: steps of more tokens.
    StepsAbove = 77,
    /// Engine: tokens of all steps, but for refused drafts.
    StepTokens = 78,
    /// Engine: window blocks that running requests use; 0 where all layers keep whole contexts.
    WindowBlocksUsed = 79,
    /// Engine: window blocks in the pool.
    WindowBlocksTotal = 80,
    /// Engine: window blocks of cached prefixes that were taken for others.
    WindowBlocksEvicted = 81,
}

/// The buckets of steps by their tokens, with their upper bounds: vLLM's.
pub const STEP_SIZES: [(u32, Gauge); 14] = [
    (1, Gauge::StepsTo1),
    (8, Gauge::StepsTo8),
    (16, Gauge::StepsTo16),
    (32, Gauge::StepsTo32),
    (64, Gauge::StepsTo64),
    (128, Gauge::StepsTo128),
    (256, Gauge::StepsTo256),
    (512, Gauge::StepsTo512),
    (1024, Gauge::StepsTo1024),
    (2048, Gauge::StepsTo2048),
    (4096, Gauge::StepsTo4096),
    (8192, Gauge::StepsTo8192),
    (16384, Gauge::StepsTo16384),
    (u32::MAX, Gauge::StepsAbove),
];

const _: () = assert!((Gauge::WindowBlocksEvicted as usize) < crate::limits::GAUGE_COUNT);

/// What of the model's folder a role is taking in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Reading {
    /// None of it.
    Nothing = 0,
    /// The tokenizer.
    Tokenizer = 1,
    /// The chat template.
    ChatTemplate = 2,
}

impl Reading {
    /// What has this number; a number of nothing is nothing.
    pub fn from_word(word: u64) -> Reading {
        match word {
            1 => Reading::Tokenizer,
            2 => Reading::ChatTemplate,
            _ => Reading::Nothing,
        }
    }
}

/// Exit code of a role's process that has reached its memory limit.
pub const EXIT_MEMORY_LIMIT: i32 = 70;

/// Life of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[repr(u64)]
pub enum Phase {
    /// Attaching and building.
    Starting = 0,
    /// In its loop.
    Ready = 1,
    /// Finishing what it has.
    Draining = 2,
    /// Out of its loop.
    Stopped = 3,
    /// Dead; the launcher is replacing it. Written by the launcher.
    Restarting = 4,
}

impl Phase {
    /// The phase with this number.
    pub fn from_word(word: u64) -> Option<Phase> {
        [Phase::Starting, Phase::Ready, Phase::Draining, Phase::Stopped, Phase::Restarting]
            .get(word as usize)
            .copied()
    }
}

/// A word on the *launcher's* page, which every frontend may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum LauncherGauge {
    /// CLOCK_MONOTONIC ns of the launcher's last turn.
    HeartbeatNs = 0,
    /// Restarts of any role since the start.
    Restarts = 1,
    /// Spare engines that wait for work.
    SpareEngines = 2,
    /// As [`Gauge::LogLinesDropped`].
    LogLinesDropped = 3,
    /// As [`Gauge::LogLosing`].
    LogLosing = 4,
    /// Edges that were found corrupt since the start.
    CorruptEdges = 5,
    /// Headers of shared regions that were found overwritten and written again.
    MendedHeaders = 6,
}

/// First word of the ring depths on the launcher's page. Edge `i` of the topology's edge list has its used
/// bytes at `EDGE_WORDS + 2 * i` and its capacity in bytes at `EDGE_WORDS + 2 * i + 1`.
pub const EDGE_WORDS: usize = 64;
