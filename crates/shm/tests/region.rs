//! Regions, blobs, slot tables and pages: what is accepted, what is refused, and by which error.
#![cfg(not(loom))]
// A failed step of a test is a failed test, in its helpers too.
#![allow(clippy::unwrap_used)]

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use pinion_os::clock;
use pinion_shm::page::Page;
use pinion_shm::region::{AttachError, HEADER_BYTES, Region, RegionKind, Words, read_blob, sealed_blob};
use pinion_shm::slots::{COUNTERS_PER_SLOT, STAGES_PER_SLOT, SlotState, SlotTable};
use pinion_shm::sync::Ordering;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

const HASH: u64 = 0x1234_5678_9abc_def0;
const EPOCH: u32 = 9;
const MAGIC: u64 = u64::from_le_bytes(*b"pinionsm");

fn region(words: usize) -> Region {
    Region::create("pinion-test", RegionKind::Ring, HASH, EPOCH, words).unwrap()
}

fn dup(region: &Region) -> OwnedFd {
    region.fd().try_clone_to_owned().unwrap()
}

fn all_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// A foreign memfd: `words` from the start, `bytes` long, with `seals`.
fn forged(words: &[u64], bytes: u64, seals: SealFlag) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create("pinion-forged", flags).unwrap());
    for (i, word) in words.iter().enumerate() {
        file.write_all_at(&word.to_ne_bytes(), i as u64 * 8).unwrap();
    }
    file.set_len(bytes).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file.into()
}

fn header(kind: RegionKind, payload_words: u64) -> [u64; 4] {
    [MAGIC, HASH, kind as u64 | u64::from(EPOCH) << 32, payload_words]
}

#[test]
fn both_ends_see_the_same_words() {
    let ours = region(3);
    let theirs = Region::attach(dup(&ours), RegionKind::Ring, HASH, Some(EPOCH)).unwrap();
    assert_eq!((ours.len(), theirs.len(), theirs.epoch()), (3, 3, EPOCH));
    assert!(ours.words().iter().all(|word| word.load(Ordering::Relaxed) == 0), "new regions are zero");
    ours.at(2).store(77, Ordering::Relaxed);
    let clone = theirs.clone();
    drop((ours, theirs));
    assert_eq!(clone.at(2).load(Ordering::Relaxed), 77, "a clone keeps the mapping");
    assert!(Region::attach(dup(&clone), RegionKind::Ring, HASH, None).is_ok(), "any epoch");
}

#[test]
fn a_region_cannot_change_its_size() {
    let region = region(16);
    for bytes in [0, 64, 1 << 20] {
        assert!(nix::unistd::ftruncate(region.fd(), bytes).is_err(), "ftruncate to {bytes}");
    }
    let more = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
    assert!(fcntl(region.fd(), more).is_err(), "a further seal would make the peer's mapping fail");
}

#[test]
fn what_is_not_ours_is_refused() {
    fn check(what: &str, fd: OwnedFd, expected: impl Fn(AttachError) -> bool) {
        let error = Region::attach(fd, RegionKind::Ring, HASH, Some(EPOCH)).err();
        assert!(error.is_some_and(&expected), "{what}: {error:?}");
        assert!(!error.unwrap().to_string().is_empty());
    }
    let good = region(4);
    let bytes = HEADER_BYTES as u64 + 32;
    let ring = header(RegionKind::Ring, 4);
    let refused = |kind, hash, epoch| Region::attach(dup(&good), kind, hash, epoch).err().unwrap();

    assert_eq!(
        refused(RegionKind::Slots, HASH, None),
        AttachError::Kind { found: 1, expected: RegionKind::Slots }
    );
    assert_eq!(
        refused(RegionKind::Ring, HASH + 1, None),
        AttachError::Layout { found: HASH, expected: HASH + 1 }
    );
    assert_eq!(refused(RegionKind::Ring, HASH, Some(8)), AttachError::Epoch { found: EPOCH, expected: 8 });

    assert!(
        Region::attach(forged(&ring, bytes, all_seals()), RegionKind::Ring, HASH, Some(EPOCH)).is_ok(),
        "the forgery is otherwise good"
    );
    check("no seals", forged(&ring, bytes, SealFlag::empty()), |e| {
        matches!(e, AttachError::Unsealed { seals: 0, .. })
    });
    for missing in [SealFlag::F_SEAL_SHRINK, SealFlag::F_SEAL_GROW, SealFlag::F_SEAL_SEAL] {
        check("one seal missing", forged(&ring, bytes, all_seals() - missing), |e| {
            matches!(e, AttachError::Unsealed { .. })
        });
    }
    check("no memfd", File::open("/proc/self/exe").unwrap().into(), |e| matches!(e, AttachError::Os { .. }));
    check("empty", forged(&[], 0, all_seals()), |e| matches!(e, AttachError::Bytes { bytes: 0, .. }));
    check("half a header", forged(&ring, 64, all_seals()), |e| {
        matches!(e, AttachError::Bytes { bytes: 64, .. })
    });
    check("huge", forged(&ring, 5 << 30, all_seals()), |e| matches!(e, AttachError::Bytes { .. }));
    check("zeros", forged(&[], bytes, all_seals()), |e| e == AttachError::Magic { found: 0 });
    check("larger claim", forged(&header(RegionKind::Ring, 5), bytes, all_seals()), |e| {
        e == AttachError::Length { claimed: 5, found: 4 }
    });
    check("absurd claim", forged(&header(RegionKind::Ring, u64::MAX), bytes, all_seals()), |e| {
        matches!(e, AttachError::Length { claimed: u64::MAX, .. })
    });
    check("smaller claim", forged(&header(RegionKind::Ring, 3), bytes, all_seals()), |e| {
        e == AttachError::Length { claimed: 3, found: 4 }
    });
    check("ragged end", forged(&ring, bytes + 5, all_seals()), |e| matches!(e, AttachError::Length { .. }));
    check("read-only", forged(&ring, bytes, all_seals() | SealFlag::F_SEAL_WRITE), |e| {
        matches!(e, AttachError::Os { call: "mmap", .. })
    });
}

#[test]
fn regions_over_the_limit_are_not_made() {
    for words in [usize::MAX, usize::MAX / 8, (4 << 30) / 8] {
        assert!(Region::create("pinion-test", RegionKind::Ring, HASH, EPOCH, words).is_err(), "{words}");
    }
}

#[test]
fn blobs_arrive_whole_and_read_only() {
    for bytes in [&b""[..], b"x", &[7; 100_000]] {
        let fd = sealed_blob("pinion-blob", bytes).unwrap();
        let file = File::from(fd.try_clone().unwrap());
        assert!(file.write_all_at(b"y", 0).is_err(), "sealed against writing");
        assert!(file.set_len(0).is_err(), "sealed against truncation");
        assert_eq!(read_blob(fd).unwrap(), bytes);
    }
    let writable = forged(&header(RegionKind::Blob, 0), HEADER_BYTES as u64, all_seals());
    assert!(matches!(read_blob(writable), Err(AttachError::Unsealed { .. })));
    let sealed = all_seals() | SealFlag::F_SEAL_WRITE;
    let ring = forged(&header(RegionKind::Ring, 0), HEADER_BYTES as u64, sealed);
    assert!(matches!(read_blob(ring), Err(AttachError::Kind { found: 1, .. })));
    let lying = forged(&header(RegionKind::Blob, 1), HEADER_BYTES as u64, sealed);
    assert_eq!(read_blob(lying), Err(AttachError::Length { claimed: 1, found: 0 }));
    assert!(sealed_blob("pinion-blob", &vec![0; 17 << 20]).is_err(), "over the limit");
}

fn attached(table: &SlotTable) -> SlotTable {
    SlotTable::attach(table.fd().try_clone_to_owned().unwrap(), HASH, Some(table.epoch())).unwrap()
}

#[test]
fn a_slot_lives_cancels_stops_and_closes() {
    let table = SlotTable::create(HASH, 1, 3).unwrap();
    let peer = attached(&table);
    assert_eq!((table.len(), peer.len(), peer.slot(3).is_none()), (3, 3, true));
    let (own, seen) = (table.slot(2).unwrap(), peer.slot(2).unwrap());
    let quiet = SlotState { generation: 0, live: false, cancelled: false, stopped: false };
    assert_eq!(seen.state(), quiet);
    assert!(!seen.cancel(0), "a slot never opened has nothing to cancel");

    assert_eq!(own.open(), 1);
    assert_eq!(seen.state(), SlotState { generation: 1, live: true, ..quiet });
    let now_ns = clock::now_ns();
    seen.stamp(1, STAGES_PER_SLOT - 1, now_ns);
    seen.set_counter(1, COUNTERS_PER_SLOT - 1, 66);
    let read = |generation| {
        (own.stamped(generation, STAGES_PER_SLOT - 1), own.counter(generation, COUNTERS_PER_SLOT - 1))
    };
    assert_eq!((read(1), read(2)), ((now_ns, 66), (0, 0)));
    for stale in [0, 2, u32::MAX] {
        assert!(!seen.cancel(stale) && !seen.stop(stale), "generation {stale}");
        own.close(stale);
    }
    assert_eq!(seen.state(), SlotState { generation: 1, live: true, ..quiet }, "stale ones change nothing");
    assert!(seen.cancel(1) && seen.cancel(1) && own.stop(1));
    let both = SlotState { generation: 1, live: true, cancelled: true, stopped: true };
    assert_eq!(seen.state(), both);
    own.close(1);
    assert_eq!(seen.state(), SlotState { live: false, ..both }, "the generation stays after the end");
    assert!(!seen.cancel(1) && !seen.stop(1), "closed is closed");

    assert_eq!(own.open(), 2);
    assert_eq!(seen.state(), SlotState { generation: 2, live: true, ..quiet });
    assert_eq!((read(1), read(2)), ((0, 0), (0, 0)));
    for other in [0, 1] {
        assert_eq!(seen.state().generation, 2);
        assert_eq!(peer.slot(other).unwrap().state(), quiet, "neighbours are untouched");
    }
}

/// A request is named by frontend, slot and generation, and a successor's table is a fresh one.
#[test]
fn no_two_lives_of_a_frontend_give_a_slot_the_same_generation() {
    let mut seen = std::collections::HashSet::new();
    for epoch in [1, 2, 3, 9, 4096] {
        let table = SlotTable::create(HASH, epoch, 2).unwrap();
        for _ in 0..1000 {
            let generation = table.slot(1).unwrap().open();
            assert!(generation != 0 && seen.insert(generation), "{generation} in life {epoch}");
        }
    }
}

/// A late writer of the slot's last request writes nothing, and if it looked before the slot was used again and
/// stores after, what it stores is not taken for the new request's.
#[test]
fn a_late_stamp_never_lands_in_the_next_request() {
    let table = SlotTable::create(HASH, EPOCH, 1).unwrap();
    let raw =
        Region::attach(table.fd().try_clone_to_owned().unwrap(), RegionKind::Slots, HASH, None).unwrap();
    let slot = table.slot(0).unwrap();
    let (first, now_ns) = (slot.open(), clock::now_ns());
    slot.stamp(first, 7, now_ns);
    let word = (0..raw.len()).find(|&i| i > 0 && raw.at(i).load(Ordering::Relaxed) != 0).unwrap();
    let stored = raw.at(word).load(Ordering::Relaxed);
    slot.close(first);
    let second = slot.open();
    slot.stamp(first, 7, now_ns);
    slot.set_counter(first, 0, 9);
    assert_eq!((raw.at(word).load(Ordering::Relaxed), slot.counter(second, 0)), (0, 0), "the look is enough");
    raw.at(word).store(stored, Ordering::Relaxed);
    assert_eq!((slot.stamped(second, 7), slot.stamped(first, 7)), (0, now_ns), "the generation tells");
    slot.stamp(second, 7, now_ns + 5);
    assert_eq!(slot.stamped(second, 7), now_ns + 5);
}

#[test]
fn generation_zero_is_skipped_at_the_wrap() {
    let table = SlotTable::create(HASH, EPOCH, 1).unwrap();
    let raw =
        Region::attach(table.fd().try_clone_to_owned().unwrap(), RegionKind::Slots, HASH, None).unwrap();
    raw.at(0).store(u64::from(u32::MAX), Ordering::Relaxed);
    let slot = table.slot(0).unwrap();
    assert_eq!(slot.open(), 1, "after 2^32 - 1 comes 1");
    assert!(slot.cancel(1));
}

#[test]
fn racing_flags_all_arrive() {
    let table = SlotTable::create(HASH, EPOCH, 1).unwrap();
    for _ in 0..2000 {
        let slot = table.slot(0).unwrap();
        let generation = slot.open();
        let (cancelled, stopped) = std::thread::scope(|scope| {
            let cancel = scope.spawn(|| slot.cancel(generation));
            (slot.stop(generation), cancel.join().unwrap())
        });
        assert!(cancelled && stopped);
        let state = slot.state();
        assert!(state.live && state.cancelled && state.stopped, "{state:?}");
        slot.close(generation);
    }
}

#[test]
fn slot_tables_hold_whole_slots() {
    let ragged = Region::create("pinion-test", RegionKind::Slots, HASH, EPOCH, 33).unwrap();
    let error = SlotTable::attach(dup(&ragged), HASH, None).err();
    assert_eq!(error, Some(AttachError::Length { claimed: 40, found: 33 }));
}

#[test]
fn pages_count() {
    let page = Page::create(HASH, EPOCH, 64).unwrap();
    let peer = Page::attach(page.fd().try_clone_to_owned().unwrap(), HASH, Some(EPOCH)).unwrap();
    page.set(63, 40);
    page.add(63, 2);
    page.add(0, 1);
    assert_eq!((peer.len(), peer.get(0), peer.get(1), peer.get(63)), (64, 1, 0, 42));
    let slots = SlotTable::create(HASH, EPOCH, 1).unwrap();
    assert!(Page::attach(slots.fd().as_fd().try_clone_to_owned().unwrap(), HASH, None).is_err());
}
