//! One sealed memfd: created by the launcher, checked by each process that attaches.
//!
//! A region has no name in the file system, so nothing leaks when all processes die. Its size is sealed, so a
//! peer cannot truncate it under our feet (SIGBUS). It is allocated and prefaulted at creation, so a full
//! machine fails there and not in the middle of a step. What the payload means is said elsewhere
//! ([`crate::ring`], [`crate::slots`], [`crate::page`]).

use crate::sync::{AtomicU64, Ordering};
pub use crate::words::Words;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl, posix_fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::{Mode, fchmod};
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of one region, header included, at most.
pub const REGION_BYTES_MAX: u64 = 4 << 30;
/// Bytes of one blob at most.
pub const BLOB_BYTES_MAX: u64 = 16 << 20;
/// Bytes in front of the payload.
pub const HEADER_BYTES: usize = 128;

const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// "pinionsm" as little-endian bytes.
const MAGIC: u64 = u64::from_le_bytes(*b"pinionsm");

/// What a region holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RegionKind {
    /// Records of one edge.
    Ring = 1,
    /// Request slots of one frontend.
    Slots = 2,
    /// A status page.
    Page = 3,
    /// Read-only bytes.
    Blob = 4,
    /// What a process did lately.
    Spans = 5,
}

/// Why a descriptor was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The kernel refused a call.
    Os {
        /// Which call.
        call: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// Its size or content could still change.
    Unsealed {
        /// Seals that it has.
        seals: i32,
        /// Seals that it must have.
        required: i32,
    },
    /// It is shorter than a header or over the limit.
    Bytes {
        /// Size of the file.
        bytes: u64,
        /// Largest size accepted.
        bytes_max: u64,
    },
    /// The header is not one of ours.
    Magic {
        /// What stands in its place.
        found: u64,
    },
    /// It was made by a build with other records.
    Layout {
        /// The region's hash.
        found: u64,
        /// Ours.
        expected: u64,
    },
    /// It holds something else.
    Kind {
        /// The region's kind.
        found: u32,
        /// What was asked for.
        expected: RegionKind,
    },
    /// It belongs to another life of the peer.
    Epoch {
        /// The region's epoch.
        found: u32,
        /// What was asked for.
        expected: u32,
    },
    /// The header's claim and the file's size differ, or the payload is no whole number of entries.
    Length {
        /// Payload units (words; bytes for a blob) by the header.
        claimed: u64,
        /// Payload units by the file's size.
        found: u64,
    },
}

impl std::fmt::Display for AttachError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            AttachError::Os { call, errno } => {
                write!(f, "shared region: {call}: {}", io::Error::from_raw_os_error(errno))
            }
            AttachError::Unsealed { seals, required } => {
                write!(f, "shared region has seals {seals:#x}, required {required:#x}")
            }
            AttachError::Bytes { bytes, bytes_max } => {
                write!(f, "shared region has {bytes} bytes, accepted {HEADER_BYTES} to {bytes_max}")
            }
            AttachError::Magic { found } => {
                write!(f, "shared region has magic {found:#x}, expected {MAGIC:#x}")
            }
            AttachError::Layout { found, expected } => {
                write!(f, "shared region has layout {found:#x}, expected {expected:#x}: builds differ")
            }
            AttachError::Kind { found, expected } => {
                write!(f, "shared region has kind {found}, expected {expected:?}")
            }
            AttachError::Epoch { found, expected } => {
                write!(f, "shared region has epoch {found}, expected {expected}")
            }
            AttachError::Length { claimed, found } => {
                write!(f, "shared region claims {claimed} payload units and has {found}")
            }
        }
    }
}

impl std::error::Error for AttachError {}

fn os(call: &'static str) -> impl Fn(Errno) -> AttachError {
    move |errno| AttachError::Os { call, errno: errno as i32 }
}

/// The header, copied out once.
#[derive(Clone, Copy)]
struct Header {
    layout_hash: u64,
    kind: u32,
    epoch: u32,
    /// Words; for a blob, bytes.
    payload_len: u64,
}

impl Header {
    fn encode(self) -> [u64; 4] {
        [MAGIC, self.layout_hash, u64::from(self.kind) | u64::from(self.epoch) << 32, self.payload_len]
    }

    fn decode(words: [u64; 4], kind: RegionKind) -> Result<Header, AttachError> {
        let [magic, layout_hash, kind_epoch, payload_len] = words;
        let header =
            Header { layout_hash, kind: kind_epoch as u32, epoch: (kind_epoch >> 32) as u32, payload_len };
        if magic != MAGIC {
            return Err(AttachError::Magic { found: magic });
        }
        if header.kind != kind as u32 {
            return Err(AttachError::Kind { found: header.kind, expected: kind });
        }
        Ok(header)
    }
}

/// A mapped region; clones share the mapping, which ends with the last of them.
#[derive(Clone)]
pub struct Region {
    shared: Arc<Mapping>,
    /// As it was made, or checked at attach; the words in the mapping are not read again.
    header: Header,
}

/// See [`set_prefault`].
static PREFAULT: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);

/// Whether regions are brought into this process's memory when they are mapped, as they are unless told otherwise, or
/// page by page when they are first used. The memory itself is there either way.
pub fn set_prefault(on: bool) {
    PREFAULT.store(on, Ordering::Relaxed);
}

struct Mapping {
    fd: OwnedFd,
    base: NonNull<AtomicU64>,
    word_count: usize,
    byte_count: usize,
}

// SAFETY: the mapping is only ever seen as atomic words, which any thread may touch; it is unmapped by the
// last owner, whichever thread that is.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method gives out anything but shared atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `byte_count` bytes, all of which must lie inside the file, whose size must be sealed
    /// or owned by the caller.
    fn new(fd: OwnedFd, byte_count: usize) -> Result<Mapping, Errno> {
        let length = NonZeroUsize::new(byte_count).ok_or(Errno::EINVAL)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let mut flags = MapFlags::MAP_SHARED;
        // Relaxed: it says how, not what, and is set before the first mapping.
        flags.set(MapFlags::MAP_POPULATE, PREFAULT.load(Ordering::Relaxed));
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing that exists.
        let base = unsafe { mmap(None, length, protection, flags, &fd, 0) }?;
        Ok(Mapping { fd, base: base.cast(), word_count: byte_count / 8, byte_count })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` starts a live page-aligned mapping of `byte_count` >= 8 * `word_count` bytes, which
        // lasts until drop; the file cannot shrink under it (sealed, or not yet shared). Every bit
        // pattern is a valid word, and all access in this crate, in every process, is by atomics.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.word_count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; nothing borrows it any more, because every
        // reference to its words borrows `self`.
        let unmapped = unsafe { munmap(self.base.cast(), self.byte_count) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping cannot fail");
    }
}

impl Region {
    /// Makes a region of `payload_words` zero words. `name` is for /proc only. Errors: over
    /// [`REGION_BYTES_MAX`], or the kernel's, among them ENOSPC for a full memory limit.
    pub fn create(
        name: &str,
        kind: RegionKind,
        layout_hash: u64,
        epoch: u32,
        payload_words: usize,
    ) -> io::Result<Region> {
        let byte_count = payload_words.checked_mul(8).and_then(|bytes| bytes.checked_add(HEADER_BYTES));
        let byte_count = byte_count
            .filter(|&bytes| bytes as u64 <= REGION_BYTES_MAX)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "shared region over its limit"))?;
        let fd = private_memfd(name)?;
        posix_fallocate(&fd, 0, byte_count as libc::off_t)?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(size_seals()))?;
        let mapping = Mapping::new(fd, byte_count)?;
        let header = Header { layout_hash, kind: kind as u32, epoch, payload_len: payload_words as u64 };
        // Relaxed is enough: a peer sees the region only after the descriptor went through a socket.
        for (word, value) in mapping.words().iter().zip(header.encode()) {
            word.store(value, Ordering::Relaxed);
        }
        Ok(Region { shared: Arc::new(mapping), header })
    }

    /// Checks and maps a received region. `epoch`: refuse any other than this one.
    pub fn attach(
        fd: OwnedFd,
        kind: RegionKind,
        layout_hash: u64,
        epoch: Option<u32>,
    ) -> Result<Region, AttachError> {
        // Seals before size: once sealed, the size cannot change after we looked at it.
        let bytes = sealed_bytes(&fd, size_seals(), REGION_BYTES_MAX)?;
        let byte_count = usize::try_from(bytes).expect("REGION_BYTES_MAX fits a 64-bit address space");
        let mapping = Mapping::new(fd, byte_count).map_err(os("mmap"))?;
        let words = mapping.words();
        let header = Header::decode(std::array::from_fn(|i| words[i].load(Ordering::Relaxed)), kind)?;
        if header.layout_hash != layout_hash {
            return Err(AttachError::Layout { found: header.layout_hash, expected: layout_hash });
        }
        if let Some(expected) = epoch.filter(|&expected| expected != header.epoch) {
            return Err(AttachError::Epoch { found: header.epoch, expected });
        }
        let found = (words.len() - HEADER_WORDS) as u64;
        if header.payload_len != found || bytes % 8 != 0 {
            return Err(AttachError::Length { claimed: header.payload_len, found });
        }
        Ok(Region { shared: Arc::new(mapping), header })
    }

    /// The memfd, for sending it to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }

    /// Which life of the peer this region belongs to; as checked at attach, not read again.
    pub fn epoch(&self) -> u32 {
        self.header.epoch
    }

    /// Writes the header again if it was overwritten, and returns whether it was: a process that attaches later would
    /// refuse the region.
    pub fn mend(&self) -> bool {
        let mut mended = false;
        for (word, value) in self.shared.words().iter().zip(self.header.encode()) {
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Relaxed);
                mended = true;
            }
        }
        mended
    }
}

impl Words for Region {
    fn words(&self) -> &[AtomicU64] {
        &self.shared.words()[HEADER_WORDS..]
    }
}

/// Bytes that no process can change, in a memfd of their own: how the resolved config travels.
pub fn sealed_blob(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    if bytes.len() as u64 > BLOB_BYTES_MAX - HEADER_BYTES as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "shared blob over its limit"));
    }
    let file = File::from(private_memfd(name)?);
    let kind = RegionKind::Blob as u32;
    let header = Header { layout_hash: 0, kind, epoch: 0, payload_len: bytes.len() as u64 };
    let mut head = [0_u8; HEADER_BYTES];
    for (chunk, word) in head.chunks_exact_mut(8).zip(header.encode()) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    file.write_all_at(&head, 0)?;
    file.write_all_at(bytes, HEADER_BYTES as u64)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(size_seals() | SealFlag::F_SEAL_WRITE))?;
    Ok(file.into())
}

/// Checks and reads a blob.
pub fn read_blob(fd: OwnedFd) -> Result<Vec<u8>, AttachError> {
    let bytes = sealed_bytes(&fd, size_seals() | SealFlag::F_SEAL_WRITE, BLOB_BYTES_MAX)?;
    let file = File::from(fd);
    let read = |buffer: &mut [u8], at: u64| {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        file.read_exact_at(buffer, at).map_err(|error| AttachError::Os { call: "pread", errno: errno(error) })
    };
    let mut head = [0_u8; HEADER_BYTES];
    read(&mut head, 0)?;
    let mut words = [0_u64; 4];
    for (word, chunk) in words.iter_mut().zip(head.chunks_exact(8)) {
        *word = u64::from_ne_bytes(chunk.try_into().expect("a chunk of eight bytes"));
    }
    let header = Header::decode(words, RegionKind::Blob)?;
    let found = bytes - HEADER_BYTES as u64;
    if header.payload_len != found {
        return Err(AttachError::Length { claimed: header.payload_len, found });
    }
    let mut payload = vec![0_u8; usize::try_from(found).expect("BLOB_BYTES_MAX fits memory")];
    read(&mut payload, HEADER_BYTES as u64)?;
    Ok(payload)
}

/// A memfd that only this user may open by way of /proc, and whose bytes are never run as a program.
fn private_memfd(name: &str) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let no_exec = MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
    let fd = match memfd_create(name, flags | no_exec) {
        // Before Linux 6.3 there is no such flag.
        Err(Errno::EINVAL) => memfd_create(name, flags)?,
        made => made?,
    };
    fchmod(&fd, Mode::S_IRUSR | Mode::S_IWUSR)?;
    Ok(fd)
}

/// The size can no longer change, and no seal can be added.
fn size_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// Size of a file that has the `required` seals, at least a header and at most `bytes_max`.
fn sealed_bytes(fd: &OwnedFd, required: SealFlag, bytes_max: u64) -> Result<u64, AttachError> {
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_err(os("fcntl(F_GET_SEALS)"))?;
    if seals & required.bits() != required.bits() {
        return Err(AttachError::Unsealed { seals, required: required.bits() });
    }
    let stat = nix::sys::stat::fstat(fd).map_err(os("fstat"))?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if bytes < HEADER_BYTES as u64 || bytes > bytes_max {
        return Err(AttachError::Bytes { bytes, bytes_max });
    }
    Ok(bytes)
}
