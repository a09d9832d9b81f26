//! One file's way from the hub into the cache: behind its lock, from where the last pull ended, under its final name
//! only when size and hash are right.

use crate::client::{Client, Remote, TRIES, host, pause, reason};
use crate::failure::Failure;
use crate::layout::Layout;
use crate::progress::say;
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BUFFER_BYTES: usize = 256 << 10;
/// Between two looks at a lock that another process holds, and between two lines about it.
const LOCK_LOOK: Duration = Duration::from_millis(100);
const LOCK_SAY: Duration = Duration::from_secs(10);
/// Digits of a sha256.
const SHA256_DIGITS: usize = 64;

/// What the threads of one pull share.
pub(crate) struct Pull<'a> {
    pub(crate) client: &'a Client<'a>,
    pub(crate) layout: &'a Layout,
    pub(crate) commit: &'a str,
    pub(crate) endpoint: &'a str,
    /// Bytes that are here.
    pub(crate) done: AtomicU64,
    /// Another file failed.
    pub(crate) given_up: AtomicBool,
}

/// The bytes of a file that are here, with the hash so far.
struct Part {
    file: File,
    length: u64,
    hash: Sha256,
}

impl Pull<'_> {
    /// Makes the file be in the snapshot. `false` if another one failed meanwhile.
    pub(crate) fn fetch(&self, remote: &Remote) -> Result<bool, Failure> {
        let blob = self.layout.blob(&remote.etag);
        let lock_path = self.layout.lock(&remote.etag);
        for path in [&blob, &lock_path] {
            let folder = path.parent().unwrap_or(path);
            fs::create_dir_all(folder).map_err(|error| Failure::disk(folder, &error))?;
        }
        if !is_whole(&blob, remote) {
            let Some(_lock) = self.lock(&lock_path, &remote.name)? else { return Ok(false) };
            // The process that held the lock may have done it.
            if is_whole(&blob, remote) {
                self.done.fetch_add(remote.size, Ordering::Relaxed);
            } else if !self.download(remote, &blob)? {
                return Ok(false);
            }
        } else {
            self.done.fetch_add(remote.size, Ordering::Relaxed);
        }
        let linked = self.layout.link(self.commit, &remote.name, &remote.etag);
        linked
            .map_err(|error| Failure::disk(self.layout.snapshot(self.commit).join(&remote.name), &error))?;
        Ok(true)
    }

    /// Waits for the lock; the kernel frees it when its holder dies. `None` if another file failed meanwhile.
    fn lock(&self, path: &Path, name: &str) -> Result<Option<Option<Flock<File>>>, Failure> {
        let mut said = Instant::now().checked_sub(LOCK_SAY);
        loop {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let file = file.map_err(|error| Failure::disk(path, &error))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Some(Some(lock))),
                Err((_, nix::Error::EWOULDBLOCK)) => {}
                // A file system without locks: the hash still guards the blob.
                Err((_, nix::Error::ENOLCK | nix::Error::ENOSYS | nix::Error::EOPNOTSUPP)) => {
                    return Ok(Some(None));
                }
                Err((_, error)) => return Err(Failure::disk(path, &error.into())),
            }
            if self.given_up.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if said.is_none_or(|said| said.elapsed() >= LOCK_SAY) {
                said = Some(Instant::now());
                say(&format!("pinion: another process downloads {name}; waiting for it"));
            }
            std::thread::sleep(LOCK_LOOK);
        }
    }

    fn download(&self, remote: &Remote, blob: &Path) -> Result<bool, Failure> {
        let path = self.layout.part(&remote.etag);
        let mut part = Part::open(&path, remote.size)?;
        let mut resumed = part.length > 0;
        self.done.fetch_add(part.length, Ordering::Relaxed);
        let mut tried = 0;
        loop {
            if self.given_up.load(Ordering::Relaxed) {
                return Ok(false);
            }
            if part.length == remote.size {
                match part.check(remote) {
                    Ok(()) => break,
                    Err(failure) => {
                        fs::remove_file(&path).map_err(|error| Failure::disk(&path, &error))?;
                        // What was here already may have been wrong: once more from the start.
                        if !std::mem::take(&mut resumed) {
                            return Err(failure);
                        }
                        self.done.fetch_sub(part.length, Ordering::Relaxed);
                        part = Part::open(&path, remote.size)?;
                    }
                }
            }
            let before = part.length;
            if let Some(failure) = self.receive(remote, &path, &mut part)? {
                tried = if part.length > before { 1 } else { tried + 1 };
                if tried >= TRIES {
                    return Err(failure);
                }
                pause(tried, None, &failure);
            }
        }
        part.file.sync_data().map_err(|error| Failure::disk(&path, &error))?;
        fs::rename(&path, blob).map_err(|error| Failure::disk(blob, &error))?;
        Ok(true)
    }

    /// Takes one connection's bytes. What can be tried again is the value, what cannot is the error.
    fn receive(&self, remote: &Remote, path: &Path, part: &mut Part) -> Result<Option<Failure>, Failure> {
        let (response, begins) = self.client.open(self.commit, &remote.name, part.length)?;
        if begins != part.length {
            // The whole file came instead of the rest.
            self.done.fetch_sub(part.length, Ordering::Relaxed);
            part.restart(path)?;
            if begins != 0 {
                let reason = "it is not the part that was asked for".to_owned();
                return Ok(Some(Failure::BadAnswer { what: remote.name.clone(), reason }));
            }
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let room = usize::try_from(remote.size - part.length).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            if room == 0 || self.given_up.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let broken = |reason: String| Failure::Unreachable {
                host: host(self.endpoint),
                reason: format!("{} was cut: {reason}", remote.name),
            };
            match body.read(&mut buffer[..room]) {
                Ok(0) => return Ok(Some(broken("it ended too early".to_owned()))),
                Ok(count) => {
                    part.append(&buffer[..count], path)?;
                    self.done.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(error) => return Ok(Some(broken(reason(&error.into())))),
            }
        }
    }
}

impl Part {
    /// What is here of the file, hashed; none of it if it is more than the whole.
    fn open(path: &Path, size: u64) -> Result<Part, Failure> {
        let cannot = |error: std::io::Error| Failure::disk(path, &error);
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(cannot)?;
        let mut part = Part { file, length: 0, hash: Sha256::new() };
        let here = part.file.metadata().map_err(cannot)?.len();
        if here > size {
            part.restart(path)?;
            return Ok(part);
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        while part.length < here {
            let room = usize::try_from(here - part.length).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
            let count = part.file.read(&mut buffer[..room]).map_err(cannot)?;
            if count == 0 {
                return Err(Failure::disk(path, &std::io::ErrorKind::UnexpectedEof.into()));
            }
            part.hash.update(&buffer[..count]);
            part.length += count as u64;
        }
        Ok(part)
    }

    fn restart(&mut self, path: &Path) -> Result<(), Failure> {
        self.file.set_len(0).map_err(|error| Failure::disk(path, &error))?;
        (self.length, self.hash) = (0, Sha256::new());
        Ok(())
    }

    fn append(&mut self, bytes: &[u8], path: &Path) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| Failure::disk(path, &error))?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// The etag of a large file is its sha256; that of a small one is git's name for it, and only its size is known.
    fn check(&mut self, remote: &Remote) -> Result<(), Failure> {
        let found: String = self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let is_hash =
            remote.etag.len() == SHA256_DIGITS && remote.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hash || found.eq_ignore_ascii_case(&remote.etag) {
            return Ok(());
        }
        Err(Failure::WrongHash { file: remote.name.clone(), expected: remote.etag.clone(), found })
    }
}

/// A blob of another size is not the hub's.
fn is_whole(blob: &Path, remote: &Remote) -> bool {
    fs::metadata(blob).is_ok_and(|meta| meta.is_file() && meta.len() == remote.size)
}
