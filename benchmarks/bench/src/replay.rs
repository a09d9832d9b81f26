//! The open loop: every request leaves at its scheduled time, whatever became of the ones before it. And the closed
//! one, for comparison with tables that have it: a number of streams, each of which sends its next request when its
//! last is done.
//!
//! A thread of its own keeps the schedule (the runtime's timers are a millisecond coarse); one other thread runs all
//! connections. Latencies are counted from the schedule, so a server or a client that falls behind cannot hide it.

use crate::answer::{self, Outcome};
use crate::http::{Reply, exchange, runtime};
use crate::progress::Progress;
use crate::target::Target;
use crate::workload::{Job, Lengths};
use bytes::Bytes;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use pinion_os::clock::now_ns;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// From the start of a run to its first request: everything is in place by then.
const LEAD_NS: u64 = 200_000_000;
/// The route that is measured.
pub(crate) const COMPLETIONS: &str = "/v1/completions";

/// One request of a finished run. Times are nanoseconds from the run's start.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub scheduled_ns: u64,
    pub sent_ns: u64,
    pub lengths: Lengths,
    /// With its times counted from the run's start, too.
    pub outcome: Outcome,
}

/// What the client itself used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClientCost {
    /// User and system time of this process during the run.
    pub cpu_s: f64,
    pub cpu_share_of_one_core: f64,
    pub cpu_us_per_token_event: f64,
}

/// A finished run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// In the order of the schedule.
    pub requests: Vec<Measured>,
    /// From the first scheduled arrival to the last byte.
    pub wall_s: f64,
    pub client: ClientCost,
}

fn cpu_s() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6
}

/// When requests leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// At their scheduled times.
    Open,
    /// In this number of streams, one after the other.
    Closed(usize),
}

/// How requests are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub pace: Pace,
    /// Whether answers are streams of events.
    pub streaming: bool,
    /// A request is given up after this time.
    pub limit: Duration,
}

/// Sends every job and waits for all answers.
pub(crate) fn replay(jobs: &[Job], target: &Target, sending: Sending) -> Result<Run, String> {
    match sending.pace {
        Pace::Open => open_loop(jobs, target, sending),
        Pace::Closed(streams) => closed_loop(jobs, target, sending, streams),
    }
}

fn closed_loop(jobs: &[Job], target: &Target, sending: Sending, streams: usize) -> Result<Run, String> {
    let (cpu_before, start_ns) = (cpu_s(), now_ns());
    let bodies = jobs.iter().map(|job| (job.body.clone(), job.frames_max));
    let bodies: Arc<Vec<(Bytes, Option<usize>)>> = Arc::new(bodies.collect());
    let next = Arc::new(AtomicUsize::new(0));
    let progress = Progress::begin(jobs.len(), Duration::ZERO);
    let replies = runtime()?.block_on(async {
        let mut open = JoinSet::new();
        for _ in 0..streams {
            let (target, bodies, next) = (target.clone(), Arc::clone(&bodies), Arc::clone(&next));
            let ended = progress.counter();
            open.spawn(async move {
                let mut done = Vec::new();
                while let Some((index, (body, frames_max))) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    bodies.get(index).map(|job| (index, job.clone()))
                } {
                    let reply = exchange(&target, COMPLETIONS, body, sending.limit, frames_max).await;
                    ended.fetch_add(1, Ordering::Relaxed);
                    done.push((index, reply));
                }
                done
            });
        }
        open.join_all().await
    });
    drop(progress);
    let cpu = cpu_s() - cpu_before;
    Ok(finish(jobs, replies.into_iter().flatten().collect(), start_ns, sending, cpu))
}

fn open_loop(jobs: &[Job], target: &Target, sending: Sending) -> Result<Run, String> {
    let (cpu_before, start_ns) = (cpu_s(), now_ns() + LEAD_NS);
    let (due, mut released) = mpsc::channel(jobs.len().max(1));
    let schedule: Vec<u64> = jobs.iter().map(|job| start_ns + job.at_ns).collect();
    let last_ns = jobs.iter().map(|job| job.at_ns).max().unwrap_or(0);
    let progress = Progress::begin(jobs.len(), Duration::from_nanos(LEAD_NS + last_ns));
    let clock = std::thread::spawn(move || keep_schedule(&schedule, &due));
    let replies = runtime()?.block_on(async {
        let mut open = JoinSet::new();
        while let Some(index) = released.recv().await {
            let (target, body): (Target, _) = (target.clone(), jobs[index].body.clone());
            let frames_max = jobs[index].frames_max;
            let ended = progress.counter();
            open.spawn(async move {
                let reply = exchange(&target, COMPLETIONS, body, sending.limit, frames_max).await;
                ended.fetch_add(1, Ordering::Relaxed);
                (index, reply)
            });
        }
        open.join_all().await
    });
    drop(progress);
    let cpu = cpu_s() - cpu_before;
    clock.join().map_err(|_| "the schedule's thread panicked".to_owned())?;
    Ok(finish(jobs, replies, start_ns, sending, cpu))
}

/// Releases each index at its time.
fn keep_schedule(schedule: &[u64], due: &mpsc::Sender<usize>) {
    let mut order: Vec<usize> = (0..schedule.len()).collect();
    order.sort_by_key(|&index| schedule[index]);
    for index in order {
        let wait_ns = schedule[index].saturating_sub(now_ns());
        if wait_ns > 0 {
            std::thread::sleep(Duration::from_nanos(wait_ns));
        }
        if due.blocking_send(index).is_err() {
            return; // the run is over
        }
    }
}

fn finish(
    jobs: &[Job],
    mut replies: Vec<(usize, Reply)>,
    start_ns: u64,
    sending: Sending,
    cpu_s: f64,
) -> Run {
    replies.sort_by_key(|(index, _)| *index);
    let since_start = |ns: u64| ns.saturating_sub(start_ns);
    let mut requests = Vec::with_capacity(replies.len());
    for (index, reply) in replies {
        let mut outcome = answer::read(&reply, sending.streaming);
        outcome.end_ns = since_start(outcome.end_ns);
        outcome.event_ns.iter_mut().for_each(|ns| *ns = since_start(*ns));
        let (sent_ns, lengths) = (since_start(reply.sent_ns), jobs[index].lengths);
        // A closed loop has no schedule: there a request is due when it is sent.
        let scheduled_ns = if sending.pace == Pace::Open { jobs[index].at_ns } else { sent_ns };
        requests.push(Measured { scheduled_ns, sent_ns, lengths, outcome });
    }
    let begin = requests.iter().map(|request| request.scheduled_ns).min().unwrap_or(0);
    let end = requests.iter().map(|request| request.outcome.end_ns).max().unwrap_or(0);
    let wall_s = end.saturating_sub(begin) as f64 / 1e9;
    let events: usize = requests.iter().map(|request| request.outcome.event_ns.len()).sum();
    let client = ClientCost {
        cpu_s,
        cpu_share_of_one_core: if wall_s > 0.0 { cpu_s / wall_s } else { 0.0 },
        cpu_us_per_token_event: if events > 0 { cpu_s * 1e6 / events as f64 } else { 0.0 },
    };
    Run { requests, wall_s, client }
}
