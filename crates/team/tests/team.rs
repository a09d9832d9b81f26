//! A team with its threads: all items once, on as many threads as were asked for, and never a wait for one that has no
//! part in the work.
#![cfg(not(loom))]
// Unsafe: the contract of `Team::run`. A failed step of a test is a failed test.
#![allow(unsafe_code, clippy::unwrap_used)]

use pinion_team::{Team, TeamOptions};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a run is held against.
struct Work<'a> {
    items: Vec<AtomicU32>,
    workers: Vec<AtomicBool>,
    longest: AtomicU64,
    also: &'a (dyn Fn(u64) + Sync),
}

unsafe extern "C" fn work(context: *mut c_void, worker: u64, begin: u64, end: u64) {
    // SAFETY: the context is that of `run`, which waits.
    let work = unsafe { &*context.cast_const().cast::<Work<'_>>() };
    assert!(!work.workers[worker as usize].swap(true, Ordering::AcqRel), "a worker is one thread's");
    work.longest.fetch_max(end - begin, Ordering::Relaxed);
    for item in begin..end {
        work.items[item as usize].fetch_add(1, Ordering::Relaxed);
        (work.also)(item);
    }
    work.workers[worker as usize].store(false, Ordering::Release);
}

/// Runs `items` in chunks of `chunk` on `threads`, and checks that each was done once. Gives the longest run of items.
fn run(team: &Team, items: u64, chunk: u64, threads: u32, also: &(dyn Fn(u64) + Sync)) -> u64 {
    let work_of = Work {
        items: (0..items).map(|_| AtomicU32::new(0)).collect(),
        workers: (0..threads.max(1)).map(|_| AtomicBool::new(false)).collect(),
        longest: AtomicU64::new(0),
        also,
    };
    // SAFETY: `work` is written for several threads, and a failed assertion in it ends the test's process.
    unsafe { team.run(work, std::ptr::from_ref(&work_of).cast_mut().cast(), items, chunk, threads) };
    assert!(
        work_of.items.iter().all(|times| times.load(Ordering::Relaxed) == 1),
        "{items} {chunk} {threads}"
    );
    work_of.longest.into_inner()
}

fn team(threads: u32, spin: Duration) -> Team {
    Team::new(TeamOptions { threads, spin, cpus: Vec::new() }).unwrap()
}

#[test]
fn each_item_is_done_once_in_chunks() {
    for spin in [Duration::ZERO, Duration::from_micros(100)] {
        let team = team(3, spin);
        for threads in [0, 1, 2, 3, 7] {
            for items in [1, 2, 3, 100, 1001] {
                for chunk in [0, 1, 8, 5000] {
                    let longest = run(&team, items, chunk, threads, &|_| ());
                    assert!(threads <= 1 || longest <= chunk.max(1), "{items} {chunk} {threads}");
                }
            }
        }
    }
}

#[test]
fn helpers_help() {
    let team = team(3, Duration::ZERO);
    let others = AtomicU32::new(0);
    let own = std::thread::current().id();
    run(&team, 3, 1, 3, &|_| {
        if std::thread::current().id() != own {
            others.fetch_add(1, Ordering::Relaxed);
        } else {
            // The caller would do everything before a helper is awake.
            while others.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
        }
    });
    assert!(others.into_inner() >= 1);
}

#[test]
fn a_helper_that_is_held_up_loses_its_part_to_the_others() {
    let team = team(2, Duration::ZERO);
    let (own, is_held, done) = (std::thread::current().id(), AtomicBool::new(false), AtomicU32::new(0));
    // The helper holds its first item until the caller has done all the others, of which most were the helper's.
    run(&team, 64, 1, 2, &|_| {
        if std::thread::current().id() == own {
            while !is_held.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            done.fetch_add(1, Ordering::AcqRel);
        } else if !is_held.swap(true, Ordering::AcqRel) {
            while done.load(Ordering::Acquire) < 63 {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(done.into_inner(), 63);
}

#[test]
fn a_team_that_is_taken_leaves_the_work_to_the_caller() {
    let team = team(2, Duration::ZERO);
    let own = std::thread::current().id();
    // From inside of work, by whichever thread.
    run(&team, 4, 1, 2, &|_| {
        let outer = std::thread::current().id();
        run(&team, 5, 1, 2, &|_| assert_eq!(std::thread::current().id(), outer));
    });
    // From another thread, while one has it.
    run(&team, 1, 1, 2, &|_| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = std::thread::current().id();
                assert_ne!(own, other);
                run(&team, 5, 1, 2, &|_| assert_eq!(std::thread::current().id(), other));
            });
        });
    });
}

#[test]
fn helpers_stay_on_their_cpus_and_end_with_the_team() {
    let cpu = core_affinity::get_core_ids().unwrap()[0].id;
    let team =
        Team::new(TeamOptions { threads: 3, spin: Duration::ZERO, cpus: vec![cpu, cpu, cpu] }).unwrap();
    let (own, seen) = (std::thread::current().id(), Mutex::new(BTreeSet::new()));
    run(&team, 64, 1, 3, &|_| {
        if std::thread::current().id() == own {
            while seen.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
        } else {
            let allowed = core_affinity::get_core_ids().unwrap();
            assert_eq!(allowed.iter().map(|core| core.id).collect::<Vec<_>>(), [cpu]);
            seen.lock().unwrap().insert(std::fs::read_link("/proc/thread-self").unwrap());
        }
    });
    let seen = seen.into_inner().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|thread| Path::new("/proc").join(thread).exists()));
    drop(team);
    // A thread that has been joined may be in /proc for a moment.
    let end = Instant::now() + Duration::from_secs(10);
    while seen.iter().any(|thread| Path::new("/proc").join(thread).exists()) {
        assert!(Instant::now() < end, "{seen:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
