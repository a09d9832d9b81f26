//! Why a model could not be pulled: one sentence each, with what to do.

use pinion_config::Exit;
use std::fmt;
use std::path::PathBuf;

/// Why there is no folder to print.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The licence has not been accepted, or there is no token to show that it has.
    Gated {
        repository: String,
        endpoint: String,
        with_token: bool,
    },
    /// Absent, or private and so not shown.
    NoRepository {
        repository: String,
        endpoint: String,
        with_token: bool,
    },
    NoRevision {
        repository: String,
        revision: String,
        endpoint: String,
    },
    BadToken {
        endpoint: String,
    },
    /// Offline, and the cache does not have it whole.
    NotCached {
        model: String,
        cache: PathBuf,
        missing: Option<String>,
    },
    /// No answer, or none to the end.
    Unreachable {
        host: String,
        reason: String,
    },
    /// An answer that is none, after every try.
    Status {
        status: u16,
        what: String,
    },
    /// An answer that cannot be used.
    BadAnswer {
        what: String,
        reason: String,
    },
    NoWeights {
        repository: String,
        reason: NoWeights,
    },
    WrongHash {
        file: String,
        expected: String,
        found: String,
    },
    NoRoom {
        cache: PathBuf,
        needed: u64,
        free: u64,
    },
    DiskFull {
        path: PathBuf,
    },
    Disk {
        path: PathBuf,
        reason: String,
    },
}

/// What is there instead of safetensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoWeights {
    Pickled,
    Gguf,
    OtherNames,
    Nothing,
}

impl Failure {
    /// An error of the file system at `path`.
    pub(crate) fn disk(path: impl Into<PathBuf>, error: &std::io::Error) -> Failure {
        let path = path.into();
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Failure::DiskFull { path },
            _ => Failure::Disk { path, reason: error.to_string() },
        }
    }

    /// Weights of another format stay so; everything else may go better the next time.
    pub(crate) fn exit(&self) -> Exit {
        if matches!(self, Failure::NoWeights { .. }) { Exit::Model } else { Exit::Pull }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Gated { repository, endpoint, with_token: false } => write!(
                f,
                "{repository} is gated: accept its licence at {endpoint}/{repository}, and set HF_TOKEN to a token of \
                 the same account"
            ),
            Failure::Gated { repository, endpoint, with_token: true } => write!(
                f,
                "{repository} is gated, and the token's account has no access to it: accept its licence at \
                 {endpoint}/{repository} with that account, or set HF_TOKEN to a token that may read gated repositories"
            ),
            Failure::NoRepository { repository, endpoint, with_token } => {
                let private = if *with_token {
                    "the token's account may not read it"
                } else {
                    "it is private; for a private one set HF_TOKEN"
                };
                write!(f, "there is no model {repository} at {endpoint}, or {private}: check the name")
            }
            Failure::NoRevision { repository, revision, endpoint } => write!(
                f,
                "{repository} has no revision {revision}: name a branch, a tag or a commit of \
                 {endpoint}/{repository}/commits/main"
            ),
            Failure::BadToken { endpoint } => write!(
                f,
                "the hub does not take the token: it is wrong or has expired; make another at \
                 {endpoint}/settings/tokens and set HF_TOKEN to it, or unset HF_TOKEN for public models"
            ),
            Failure::NotCached { model, cache, missing } => {
                let cache = cache.display();
                match missing {
                    Some(file) => write!(f, "the copy of {model} in {cache} lacks {file}")?,
                    None => write!(f, "{model} is not in the cache {cache}")?,
                }
                f.write_str(", and offline nothing is downloaded: pull it once without --hub-offline and HF_HUB_OFFLINE")
            }
            Failure::Unreachable { host, reason } => write!(
                f,
                "{host} cannot be reached ({reason}): check the network, or set HF_ENDPOINT to a mirror; what has come \
                 so far is kept"
            ),
            Failure::Status { status, what } => {
                write!(f, "the hub answers {status} for {what}, also after several tries: try again later")
            }
            Failure::BadAnswer { what, reason } => {
                write!(f, "the hub's answer for {what} cannot be used: {reason}; check HF_ENDPOINT")
            }
            Failure::NoWeights { repository, reason } => write!(f, "{repository} {reason}"),
            Failure::WrongHash { file, expected, found } => write!(
                f,
                "{file} came with the sha256 {found} instead of {expected} and was removed: pull again; if it stays so, \
                 something on the way changes the bytes"
            ),
            Failure::NoRoom { cache, needed, free } => write!(
                f,
                "{} has {} free and {} are needed: make room, or name another place with --hub-cache",
                cache.display(),
                crate::progress::bytes(*free),
                crate::progress::bytes(*needed)
            ),
            Failure::DiskFull { path } => write!(
                f,
                "the disk is full at {}: make room, or name another place with --hub-cache; what has come so far is kept",
                path.display()
            ),
            Failure::Disk { path, reason } => write!(f, "{}: {reason}", path.display()),
        }
    }
}

impl fmt::Display for NoWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoWeights::Pickled => {
                "has no safetensors, only pickled weights (.bin, .pt), which can hold code and are not loaded: convert it \
                 once with transformers, AutoModelForCausalLM.from_pretrained(NAME).save_pretrained(DIR), and serve DIR"
            }
            NoWeights::Gguf => {
                "has GGUF files only, which are not pulled: download one and serve it by its path, or name the \
                 repository that they were made from"
            }
            NoWeights::OtherNames => {
                "has safetensors, but neither model.safetensors nor model.safetensors.index.json: it is an adapter or has \
                 another layout, which is not read"
            }
            NoWeights::Nothing => "has no weights: name a repository with model.safetensors",
        })
    }
}
