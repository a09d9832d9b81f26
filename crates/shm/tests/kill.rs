//! A writer killed in full flood, many times, at random moments: the reader sees a gap-free prefix, nothing
//! torn, notices the death, and nothing leaks.
//!
//! The writer is this very test binary, run again for [`flooding_child`]. There is one test here only, so
//! that the count of open descriptors is its own.
#![cfg(not(loom))]
// A failed step of a test is a failed test, in its helpers too.
#![allow(clippy::unwrap_used)]

mod seeded;

use pinion_os::{fdpass, pidfd};
use pinion_random::Random;
use pinion_shm::doorbell::{Doorbell, wait};
use pinion_shm::region::{Region, RegionKind};
use pinion_shm::ring::{Reader, Record, Writer, region_words};
use seeded::Seeded;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 60;
const HASH: u64 = 0x51ab;
const CAPACITY_BYTES: usize = 1 << 16;
const MARKER: &str = "PINION_SHM_KILL_CHILD";
/// No round takes longer, or something hangs.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// Kind and payload of record `sequence`, so that the reader can check every bit.
fn expected(sequence: u64, payload: &mut Vec<u8>) -> u16 {
    let mut random = Random::new(sequence);
    let len = random.below(700);
    payload.clear();
    payload.extend((0..len).map(|_| random.bits() as u8));
    (sequence % 1000) as u16 + 1
}

/// Not a test: the victim. It attaches over its standard input and floods until it is killed.
#[test]
#[ignore = "the child of a_killed_writer_leaves_a_clean_prefix"]
fn flooding_child() {
    let Ok(epoch) = std::env::var(MARKER) else { return };
    let epoch = epoch.parse().unwrap();
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).unwrap();
    let stdin = std::io::stdin();
    assert!(wait(&[stdin.as_fd()], ROUND_MAX).unwrap().readable == 1, "no descriptors came");
    let mut fds = fdpass::recv(stdin.as_fd()).unwrap().unwrap().fds;
    let bell = Doorbell::from_fd(fds.pop().unwrap());
    let region = Region::attach(fds.pop().unwrap(), RegionKind::Ring, HASH, Some(epoch)).unwrap();
    let mut writer = Writer::new(region, epoch, bell).unwrap();
    let mut payload = Vec::new();
    let begin = Instant::now();
    for sequence in 0.. {
        let kind = expected(sequence, &mut payload);
        while writer.push(kind, &payload).is_err() {
            writer.publish();
            std::thread::yield_now();
            assert!(begin.elapsed() < ROUND_MAX, "the victim was not killed");
        }
        if sequence % 7 == 0 {
            writer.publish();
        }
    }
}

/// Starts a victim on a new ring and gives it its descriptors.
fn start(epoch: u32) -> (Child, OwnedFd, Doorbell, Reader<Region>) {
    let words = region_words(CAPACITY_BYTES);
    let region = Region::create("pinion-ring", RegionKind::Ring, HASH, epoch, words).unwrap();
    let bell = Doorbell::create().unwrap();
    let (ours, theirs) = fdpass::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "flooding_child", "--ignored", "--nocapture"])
        .env(MARKER, epoch.to_string())
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let death = pidfd::open(child.id()).unwrap();
    fdpass::send(ours.as_fd(), b"ring and doorbell", &[region.fd(), bell.fd()]).unwrap();
    let reader = Reader::new(region, epoch).unwrap();
    (child, death, bell, reader)
}

/// Takes up to `limit` records and checks each; gives how many.
fn drain(reader: &mut Reader<Region>, taken: u64, limit: u64, payload: &mut Vec<u8>) -> u64 {
    let mut count = 0;
    while count < limit {
        let Some(record) = reader.next().expect("an honest writer's ring never faults, dead or alive") else {
            break;
        };
        let kind = expected(taken + count, payload);
        assert_eq!(record, Record { kind, sequence: taken + count, payload: &payload[..] });
        count += 1;
    }
    count
}

/// One victim, killed `after` its first record (or after its start, if `early`). Gives the records seen.
fn round(epoch: u32, after: Duration, early: bool, payload: &mut Vec<u8>) -> u64 {
    let (mut child, death, bell, mut reader) = start(epoch);
    let begin = Instant::now();
    let mut kill_at = early.then(|| begin + after);
    let mut killed = false;
    let mut taken = 0;
    loop {
        assert!(begin.elapsed() < ROUND_MAX, "round {epoch} hangs after {taken} records");
        let count = drain(&mut reader, taken, 64, payload);
        taken += count;
        if taken > 0 && kill_at.is_none() {
            kill_at = Some(Instant::now() + after);
        }
        if !killed && kill_at.is_some_and(|at| Instant::now() >= at) {
            child.kill().unwrap();
            killed = true;
        }
        if count > 0 || !reader.arm() {
            continue;
        }
        let until_kill = kill_at.filter(|_| !killed).map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = until_kill.unwrap_or(Duration::from_millis(100)).min(Duration::from_millis(100));
        let ready = wait(&[bell.fd(), death.as_fd()], timeout).unwrap();
        bell.drain();
        reader.disarm();
        if ready.readable & 0b10 != 0 {
            break;
        }
    }
    // It may have died between publish and wake: what it published is still ours.
    taken += drain(&mut reader, taken, u64::MAX, payload);
    assert!(reader.is_empty() && reader.used_bytes() == 0);
    assert_eq!(child.wait().unwrap().signal(), Some(9), "killed, and not by an error of its own");
    taken
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_killed_writer_leaves_a_clean_prefix() {
    let mut seeded = Seeded::new("a_killed_writer_leaves_a_clean_prefix");
    let mut payload = Vec::new();
    round(1, Duration::ZERO, false, &mut payload);
    let fds_before = open_fds();
    let (mut total, mut empty) = (0, 0);
    for epoch in 2..2 + ROUNDS {
        let early = seeded.below(5) == 0;
        let after = Duration::from_micros(seeded.below(8000));
        let taken = round(epoch, after, early, &mut payload);
        total += taken;
        empty += u32::from(taken == 0);
    }
    println!("{ROUNDS} kills, {total} records checked, {empty} killed before their first record");
    assert_eq!(open_fds(), fds_before, "descriptors leaked");
    assert!(total > u64::from(ROUNDS) * 10 && empty < ROUNDS / 2, "the kills must hit a flood");
}
