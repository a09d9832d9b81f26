//! What one engine step costs in the ring, on this machine, now: a tool, and no claim.
//!
//! One record of 64 token events (16 bytes each, plus a step header) per push and publish, (a) with the reader
//! awake, (b) with the reader asleep, so that each publish rings the doorbell, and (c) how many such
//! records two threads move per second.

#[cfg(not(loom))]
fn main() {
    cost::print_table();
}

#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
mod cost {
    use pinion_shm::doorbell::{Doorbell, wait};
    use pinion_shm::region::{Region, RegionKind};
    use pinion_shm::ring::{Reader, Writer, region_words};
    use std::time::{Duration, Instant};

    const STEP_BYTES: usize = 24 + 64 * 16;
    const ROUNDS: usize = 20_000;
    const CAPACITY_BYTES: usize = 1 << 20;

    fn ring() -> (Writer<Region>, Reader<Region>, Doorbell) {
        let words = region_words(CAPACITY_BYTES);
        let region =
            Region::create("pinion-cost", RegionKind::Ring, 0, 1, words).expect("memory for one ring");
        let bell = Doorbell::create().expect("one descriptor");
        let writer = Writer::new(region.clone(), 1, bell.try_clone().expect("one descriptor"));
        (writer.expect("a new ring"), Reader::new(region, 1).expect("a new ring"), bell)
    }

    /// Nanoseconds of push and publish, and of the reader's take, in the order measured.
    fn steps(asleep: bool) -> (Vec<u64>, Vec<u64>) {
        let (mut writer, mut reader, bell) = ring();
        let step = [7_u8; STEP_BYTES];
        let (mut pushes, mut takes) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
        for _ in 0..ROUNDS {
            if asleep {
                assert!(reader.arm(), "nothing is there yet");
            }
            let begin = Instant::now();
            writer.push(1, &step).expect("an empty ring has room");
            writer.publish();
            pushes.push(begin.elapsed().as_nanos() as u64);
            reader.disarm();
            bell.drain();
            let begin = Instant::now();
            assert!(reader.next().expect("an honest writer").is_some());
            takes.push(begin.elapsed().as_nanos() as u64);
        }
        (pushes, takes)
    }

    fn row(what: &str, mut ns: Vec<u64>) {
        ns.sort_unstable();
        let at = |percent: usize| ns[(ns.len() - 1) * percent / 100];
        println!("{what:<40} {:>8} {:>8} {:>8}", at(50), at(90), at(99));
    }

    /// Records per second between two threads, the reader sleeping whenever it may.
    fn throughput() -> (f64, u64) {
        const RECORDS: u64 = 500_000;
        let (mut writer, mut reader, bell) = ring();
        let begin = Instant::now();
        let writing = std::thread::spawn(move || {
            let step = [7_u8; STEP_BYTES];
            for _ in 0..RECORDS {
                while writer.push(1, &step).is_err() {
                    std::thread::yield_now();
                }
                writer.publish();
            }
        });
        let (mut taken, mut sleeps) = (0, 0);
        while taken < RECORDS {
            while reader.next().expect("an honest writer").is_some() {
                taken += 1;
            }
            if taken < RECORDS && reader.arm() {
                wait(&[bell.fd()], Duration::from_millis(100)).expect("a valid descriptor");
                bell.drain();
                reader.disarm();
                sleeps += 1;
            }
        }
        writing.join().expect("the writer does not panic");
        (RECORDS as f64 / begin.elapsed().as_secs_f64(), sleeps)
    }

    pub(crate) fn print_table() {
        println!("{:<40} {:>8} {:>8} {:>8}", "64-event step, ns", "p50", "p90", "p99");
        let (pushes, takes) = steps(false);
        row("push + publish, reader awake", pushes);
        row("take, reader awake", takes);
        let (pushes, takes) = steps(true);
        row("push + publish, reader asleep", pushes);
        row("take, reader asleep", takes);
        let (rate, sleeps) = throughput();
        let gigabytes = rate * STEP_BYTES as f64 / 1e9;
        println!("two threads: {rate:.0} records/s, {gigabytes:.2} GB/s, {sleeps} sleeps");
    }
}
