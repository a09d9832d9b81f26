//! The pull itself: which files, which of them are here, and the rest by a few connections at once.

use crate::client::{Client, Listing, Remote, TRIES};
use crate::failure::Failure;
use crate::fetch::Pull;
use crate::layout::{self, Layout};
use crate::progress::{Progress, bytes, say};
use crate::select::{self, Missing};
use pinion_config::PullCommand;
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Instant;

/// Files that come at the same time.
const CONNECTIONS: usize = 4;

/// Makes the model be in the cache; the folder to serve.
pub(crate) fn pull(command: &PullCommand) -> Result<PathBuf, Failure> {
    let layout = Layout::new(&command.cache, &command.model.repository);
    let known = layout.commit_of(&command.model.revision).map(|commit| layout.snapshot(&commit));
    let cached = known
        .as_deref()
        .filter(|snapshot| snapshot.is_dir())
        .map(|snapshot| (snapshot, layout::lacks(snapshot)));
    if command.offline {
        return match cached {
            Some((snapshot, None)) => Ok(snapshot.to_owned()),
            lacking => {
                let missing = lacking.and_then(|(_, missing)| missing);
                Err(Failure::NotCached {
                    model: command.model.to_string(),
                    cache: command.cache.clone(),
                    missing,
                })
            }
        };
    }
    let whole = cached.and_then(|(snapshot, missing)| missing.is_none().then_some(snapshot));
    let client = Client::new(command);
    match client.list(if whole.is_some() { 1 } else { TRIES }) {
        Ok(listing) => {
            let pulled = Online { command, layout: &layout, client: &client, listing: &listing }.pull();
            // All that is served is here; a licence, say, is not.
            let same = layout.snapshot(&listing.commit);
            pulled.or_else(|failure| cached_copy(failure, whole.filter(|snapshot| *snapshot == same)))
        }
        Err(failure @ (Failure::Unreachable { .. } | Failure::Status { .. })) => cached_copy(failure, whole),
        Err(failure) => Err(failure),
    }
}

/// What is served where the hub fails: the copy in the cache, if that is whole.
fn cached_copy(failure: Failure, whole: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(snapshot) = whole else { return Err(failure) };
    say(&format!("pinion: {failure}. The copy in the cache is taken: {}", snapshot.display()));
    Ok(snapshot.to_owned())
}

struct Online<'a> {
    command: &'a PullCommand,
    layout: &'a Layout,
    client: &'a Client<'a>,
    listing: &'a Listing,
}

impl Online<'_> {
    fn pull(&self) -> Result<PathBuf, Failure> {
        let (names, commit) = (&self.listing.files, &self.listing.commit);
        let companions: Vec<String> =
            names.iter().filter(|name| select::is_companion(name)).cloned().collect();
        let snapshot = self.layout.snapshot(commit);
        // What cannot be served is not begun.
        if !companions.iter().any(|name| name == select::INDEX) {
            self.weights(&snapshot)?;
        }
        let began = Instant::now();
        let small = self.take(&companions)?;
        let large = self.take(&self.weights(&snapshot)?)?;
        let noted = self.layout.note(&self.command.model.revision, commit);
        noted.map_err(|error| Failure::disk(&snapshot, &error))?;
        let model = &self.command.model;
        say(&match small + large {
            0 => format!("pinion: {model} is in the cache at commit {commit}"),
            count => format!(
                "pinion: {model} was pulled at commit {commit}: {} in {:.1} s",
                bytes(count),
                began.elapsed().as_secs_f64()
            ),
        });
        Ok(snapshot)
    }

    /// Names of the weight files, once the index is here.
    fn weights(&self, snapshot: &Path) -> Result<Vec<String>, Failure> {
        let path = snapshot.join(select::INDEX);
        let named = self.listing.files.iter().any(|name| name == select::INDEX);
        let bad = |reason: String| Failure::BadAnswer { what: select::INDEX.to_owned(), reason };
        let index = if named {
            let text = layout::read_small(&path).map_err(|error| Failure::disk(&path, &error))?;
            Some(select::files_of_index(&text).map_err(|reason| bad(format!("it {reason}")))?)
        } else {
            None
        };
        select::weights(&self.listing.files, index.as_deref()).map_err(|missing| match missing {
            Missing::All(reason) => {
                Failure::NoWeights { repository: self.command.model.repository.clone(), reason }
            }
            Missing::OfIndex(file) => bad(format!("it names {file}, which the repository does not have")),
        })
    }

    /// Downloads what is not in the snapshot yet; the bytes that came.
    fn take(&self, names: &[String]) -> Result<u64, Failure> {
        let snapshot = self.layout.snapshot(&self.listing.commit);
        let absent = names.iter().filter(|name| !snapshot.join(name).is_file());
        let files: Result<Vec<Remote>, Failure> =
            absent.map(|name| self.client.describe(&self.listing.commit, name)).collect();
        let files = files?;
        if files.is_empty() {
            return Ok(0);
        }
        let total = files.iter().map(|file| file.size).sum();
        let here = files.iter().map(|file| self.bytes_here(file)).sum::<u64>();
        self.check_room(total, here)?;
        let largest = files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>();
        say(&format!(
            "pinion: pulling {} of {}: {}{}",
            if largest.len() == 1 { largest[0].to_owned() } else { format!("{} files", largest.len()) },
            self.command.model,
            bytes(total),
            if here > 0 { format!(", of which {} are here", bytes(here)) } else { String::new() }
        ));
        self.download(files, total, here)?;
        Ok(total - here)
    }

    fn bytes_here(&self, file: &Remote) -> u64 {
        let length = |path: PathBuf| fs::metadata(path).ok().map(|meta| meta.len());
        let here = length(self.layout.blob(&file.etag)).or_else(|| length(self.layout.part(&file.etag)));
        here.unwrap_or(0).min(file.size)
    }

    fn check_room(&self, total: u64, here: u64) -> Result<(), Failure> {
        let cache = &self.command.cache;
        fs::create_dir_all(cache).map_err(|error| Failure::disk(cache, &error))?;
        let Ok(status) = nix::sys::statvfs::statvfs(cache) else { return Ok(()) };
        let free = status.blocks_available().saturating_mul(status.fragment_size());
        let needed = total.saturating_sub(here);
        if needed > free { Err(Failure::NoRoom { cache: cache.clone(), needed, free }) } else { Ok(()) }
    }

    /// A few threads take files off one list; this one shows how far they are.
    fn download(&self, files: Vec<Remote>, total: u64, here: u64) -> Result<(), Failure> {
        let pull = Pull {
            client: self.client,
            layout: self.layout,
            commit: &self.listing.commit,
            endpoint: &self.command.endpoint,
            done: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
        };
        let threads = CONNECTIONS.min(files.len());
        let files = Mutex::new(VecDeque::from(files));
        let (sender, receiver) = mpsc::channel();
        let mut progress = Progress::new(total, here);
        let mut first = None;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (sender, files, pull) = (sender.clone(), &files, &pull);
                scope.spawn(move || {
                    let next = || files.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    while let Some(file) = next() {
                        let outcome = pull.fetch(&file);
                        let goes_on = matches!(outcome, Ok(true));
                        if !goes_on {
                            pull.given_up.store(true, Ordering::Relaxed);
                        }
                        // The receiver waits until every sender is gone.
                        let _ = sender.send(outcome);
                        if !goes_on {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            loop {
                match receiver.recv_timeout(progress.tick()) {
                    Ok(Err(failure)) => first = first.take().or(Some(failure)),
                    Ok(Ok(_)) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                }
                progress.show(pull.done.load(Ordering::Relaxed));
            }
        });
        first.map_or(Ok(()), Err)
    }
}
