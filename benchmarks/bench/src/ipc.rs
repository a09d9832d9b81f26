//! `ipc`: what one hop costs, for our ring and, beside it, for `ipc-channel`, which carries no tokens here.
//!
//! Two threads of this process stand for two roles: the memory, the doorbell and the system calls are the same as
//! between processes. A record is one engine step: a header of 24 bytes and 24 bytes per token event. *Awake* readers
//! look again and again, *asleep* ones wait in ppoll until the doorbell rings.

use crate::figures::{Quantile, Spread, TOO_FEW_NOTE};
use crate::results::write_whole;
use crate::table;
use clap::Args;
use ipc_channel::ipc::{IpcBytesReceiver, IpcBytesSender, bytes_channel};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use pinion_os::clock::now_ns;
use pinion_shm::doorbell::{Doorbell, wait};
use pinion_shm::region::{Region, RegionKind};
use pinion_shm::ring::{Reader, Writer, region_words};
use serde::Serialize;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const CAPACITY_BYTES: usize = 1 << 20;
const HEADER_BYTES: usize = 24;
const EVENT_BYTES: usize = 24;
/// A reader that sleeps looks again after this time at the latest.
const NAP: Duration = Duration::from_millis(100);
/// Records of the throughput run per round of the latency runs.
const BULK: usize = 20;

#[derive(Args, Clone, Debug)]
pub(crate) struct IpcArgs {
    /// Token events in a record, one table row each.
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    events: Vec<usize>,
    /// Records per measurement.
    #[arg(long, default_value_t = 20_000)]
    rounds: usize,
    /// Also write the figures to this JSON file.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Readers {
    Awake,
    Asleep,
}

/// Figures of one transport, record size and kind of reader. Times in ns.
#[derive(Clone, Debug, Serialize)]
struct Row {
    transport: &'static str,
    readers: Readers,
    events: usize,
    publish: Spread,
    round_trip: Spread,
    records_per_s: f64,
    cpu_ns_per_token_hop: f64,
}

struct Ring {
    writer: Writer<Region>,
    reader: Reader<Region>,
    bell: Doorbell,
}

fn ring() -> Result<Ring, String> {
    let words = region_words(CAPACITY_BYTES);
    let region = Region::create("pinion-bench", RegionKind::Ring, 0, 1, words).map_err(|e| e.to_string())?;
    let bell = Doorbell::create().map_err(|e| e.to_string())?;
    let writer = Writer::new(region.clone(), 1, bell.try_clone().map_err(|e| e.to_string())?);
    let writer = writer.map_err(|e| format!("{e:?}"))?;
    let reader = Reader::new(region, 1).map_err(|e| format!("{e:?}"))?;
    Ok(Ring { writer, reader, bell })
}

/// Takes one record, waiting as the kind of reader does.
fn take(reader: &mut Reader<Region>, bell: &Doorbell, readers: Readers) {
    loop {
        if reader.next().expect("our own writer is honest").is_some() {
            return;
        }
        match readers {
            Readers::Awake => std::hint::spin_loop(),
            Readers::Asleep => {
                if reader.arm() {
                    wait(&[bell.fd()], NAP).expect("a valid descriptor");
                    bell.drain();
                }
                reader.disarm();
            }
        }
    }
}

fn send(writer: &mut Writer<Region>, record: &[u8]) {
    while writer.push(1, record).is_err() {
        thread::yield_now();
    }
    writer.publish();
}

/// CPU time of all threads of this process, in ns.
fn cpu_ns() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 * 1e3
}

/// The cost of push and publish, and of nothing else: the reader is made to sleep, or not, before each.
fn ring_publish(record: &[u8], rounds: usize, readers: Readers) -> Result<Vec<u64>, String> {
    let Ring { mut writer, mut reader, bell } = ring()?;
    let mut costs = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        if readers == Readers::Asleep && !reader.arm() {
            return Err("the ring is not empty".to_owned());
        }
        let begin = now_ns();
        send(&mut writer, record);
        costs.push(now_ns() - begin);
        reader.disarm();
        bell.drain();
        take(&mut reader, &bell, Readers::Awake);
    }
    Ok(costs)
}

/// There and back through two rings and an echoing thread; and the CPU time of both sides.
fn ring_round_trips(record: &[u8], rounds: usize, readers: Readers) -> Result<(Vec<u64>, f64), String> {
    let (mut there, mut back) = (ring()?, ring()?);
    let (mut times, cpu) = (Vec::with_capacity(rounds), cpu_ns());
    thread::scope(|scope| {
        let (reader, bell, writer) = (&mut there.reader, &there.bell, &mut back.writer);
        scope.spawn(move || {
            for _ in 0..rounds {
                take(reader, bell, readers);
                send(writer, record);
            }
        });
        for _ in 0..rounds {
            let begin = now_ns();
            send(&mut there.writer, record);
            take(&mut back.reader, &back.bell, readers);
            times.push(now_ns() - begin);
        }
    });
    Ok((times, cpu_ns() - cpu))
}

/// Records per second from one thread to another.
fn ring_throughput(record: &[u8], records: usize, readers: Readers) -> Result<f64, String> {
    let mut one = ring()?;
    let begin = now_ns();
    thread::scope(|scope| {
        let writer = &mut one.writer;
        scope.spawn(move || (0..records).for_each(|_| send(writer, record)));
        (0..records).for_each(|_| take(&mut one.reader, &one.bell, readers));
    });
    Ok(records as f64 / (now_ns() - begin) as f64 * 1e9)
}

fn ring_row(events: usize, rounds: usize, readers: Readers) -> Result<Row, String> {
    let record = vec![7; HEADER_BYTES + events * EVENT_BYTES];
    let publish = ring_publish(&record, rounds, readers)?;
    let (round_trips, cpu) = ring_round_trips(&record, rounds, readers)?;
    let records_per_s = ring_throughput(&record, rounds * BULK, readers)?;
    Ok(row("ring", readers, events, publish, (round_trips, cpu), records_per_s))
}

fn channel_row(events: usize, rounds: usize) -> Result<Row, String> {
    let record = vec![7; HEADER_BYTES + events * EVENT_BYTES];
    let ends = || bytes_channel().map_err(|error| error.to_string());
    let put = |sender: &IpcBytesSender, record: &[u8]| sender.send(record).map_err(|error| error.to_string());
    let get = |inbox: &IpcBytesReceiver| inbox.recv().map_err(|error| format!("{error:?}"));
    let ((to_echo, echo_inbox), (from_echo, inbox)) = (ends()?, ends()?);
    let (mut publish, mut round_trips) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    let cpu = cpu_ns();
    let answer = record.clone();
    // Each end moves to its thread: no end can be shared.
    let echo = thread::spawn(move || -> Result<(), String> {
        for _ in 0..rounds {
            get(&echo_inbox)?;
            put(&from_echo, &answer)?;
        }
        Ok(())
    });
    for _ in 0..rounds {
        let begin = now_ns();
        put(&to_echo, &record)?;
        publish.push(now_ns() - begin);
        get(&inbox)?;
        round_trips.push(now_ns() - begin);
    }
    echo.join().map_err(|_| "the echo panicked".to_owned())??;
    let cpu = cpu_ns() - cpu;
    let (sender, receiver) = ends()?;
    let begin = now_ns();
    let writer = thread::spawn(move || (0..rounds).try_for_each(|_| put(&sender, &record)));
    for _ in 0..rounds {
        get(&receiver)?;
    }
    writer.join().map_err(|_| "the writer panicked".to_owned())??;
    let records_per_s = rounds as f64 / (now_ns() - begin) as f64 * 1e9;
    Ok(row("ipc-channel", Readers::Asleep, events, publish, (round_trips, cpu), records_per_s))
}

fn row(
    transport: &'static str,
    readers: Readers,
    events: usize,
    publish: Vec<u64>,
    (round_trips, cpu_ns): (Vec<u64>, f64),
    records_per_s: f64,
) -> Row {
    let hops = 2 * round_trips.len() * events;
    // Spread divides by a million; the figures here stay in ns.
    let spread = |values: Vec<u64>| Spread::of(values.into_iter().map(|ns| ns * 1_000_000));
    Row {
        transport,
        readers,
        events,
        publish: spread(publish),
        round_trip: spread(round_trips),
        records_per_s,
        cpu_ns_per_token_hop: cpu_ns / hops as f64,
    }
}

pub(crate) fn run(args: &IpcArgs) -> Result<(), String> {
    for (name, has_none) in [("--rounds", args.rounds == 0), ("--events", args.events.contains(&0))] {
        if has_none {
            return Err(format!("{name} is above 0"));
        }
    }
    let mut rows = Vec::new();
    for &events in &args.events {
        rows.push(ring_row(events, args.rounds, Readers::Awake)?);
        rows.push(ring_row(events, args.rounds, Readers::Asleep)?);
        rows.push(channel_row(events, args.rounds)?);
    }
    let header = [
        "transport",
        "readers",
        "events/record",
        "publish ns p50/p99",
        "round trip µs p50/p99",
        "records/s",
        "M tokens/s",
        "CPU ns per token and hop",
    ];
    let number = table::number;
    let two = |spread: &Spread, unit: f64| {
        let cell = |q: Quantile| q.shown(spread).map_or("-".to_owned(), |value| number(value / unit));
        format!("{} / {}", cell(Quantile::P50), cell(Quantile::P99))
    };
    let lines = rows.iter().map(|row| {
        vec![
            row.transport.to_owned(),
            format!("{:?}", row.readers).to_lowercase(),
            row.events.to_string(),
            two(&row.publish, 1.0),
            two(&row.round_trip, 1e3),
            number(row.records_per_s),
            number(row.records_per_s * row.events as f64 / 1e6),
            number(row.cpu_ns_per_token_hop),
        ]
    });
    println!("{}", table::noted(table::render(&header, &lines.collect::<Vec<_>>()), TOO_FEW_NOTE));
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?;
        write_whole(path, text.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transport_gives_a_whole_row() {
        for readers in [Readers::Awake, Readers::Asleep] {
            let row = ring_row(3, 200, readers).expect("a ring");
            assert_eq!((row.publish.count, row.round_trip.count), (200, 200));
            assert!(row.records_per_s > 0.0 && row.round_trip.p50 >= row.publish.p50);
        }
        let row = channel_row(3, 200).expect("a channel");
        assert_eq!((row.publish.count, row.round_trip.count), (200, 200));
    }
}
