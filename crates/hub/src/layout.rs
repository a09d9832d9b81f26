//! The cache on disk, as huggingface_hub, transformers and vLLM have it:
//!
//! ```text
//! CACHE/models--ORG--NAME/blobs/ETAG                  a file's bytes
//! CACHE/models--ORG--NAME/blobs/ETAG.incomplete       those that have come so far
//! CACHE/models--ORG--NAME/snapshots/COMMIT/FILE       a link to ../../blobs/ETAG
//! CACHE/models--ORG--NAME/refs/REVISION               the commit that the revision was at the last time
//! CACHE/.locks/models--ORG--NAME/ETAG.lock            held by the writer of that blob
//! ```

use crate::select;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The largest index or reference that is read, in bytes.
const SMALL_BYTES_MAX: u64 = 64 << 20;
const COMMIT_DIGITS: usize = 40;

/// One repository's part of the cache.
#[derive(Debug)]
pub(crate) struct Layout {
    repository: PathBuf,
    locks: PathBuf,
}

impl Layout {
    pub(crate) fn new(cache: &Path, repository: &str) -> Layout {
        let name = format!("models--{}", repository.replace('/', "--"));
        Layout { repository: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.repository.join("blobs").join(etag)
    }

    pub(crate) fn part(&self, etag: &str) -> PathBuf {
        self.repository.join("blobs").join(format!("{etag}.incomplete"))
    }

    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.repository.join("snapshots").join(commit)
    }

    /// The commit that a revision was the last time, if it was ever pulled; a commit is its own.
    pub(crate) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = read_small(&self.repository.join("refs").join(revision)).ok()?;
        String::from_utf8(text).ok().map(|text| text.trim().to_owned()).filter(|commit| is_name(commit))
    }

    /// Notes which commit a revision is. Nothing is written where it is known already: the cache may be read-only.
    pub(crate) fn note(&self, revision: &str, commit: &str) -> io::Result<()> {
        if self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.repository.join("refs").join(revision);
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(folder)?;
        let draft = folder.join(format!(".{}.{}", commit, std::process::id()));
        fs::write(&draft, commit)?;
        fs::rename(&draft, &path)
    }

    /// Makes the blob appear as a file of the snapshot, at once or not at all.
    pub(crate) fn link(&self, commit: &str, file: &str, etag: &str) -> io::Result<()> {
        let path = self.snapshot(commit).join(file);
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::create_dir_all(folder)?;
        let up = "../".repeat(2 + file.matches('/').count());
        let target = format!("{up}blobs/{etag}");
        if fs::read_link(&path).is_ok_and(|now| now == Path::new(&target)) {
            return Ok(());
        }
        let draft = folder.join(format!(".{}.{}", etag, std::process::id()));
        std::os::unix::fs::symlink(target, &draft)?;
        fs::rename(&draft, &path)
    }
}

/// The first file that a snapshot lacks to be served; `None` if it is whole.
pub(crate) fn lacks(snapshot: &Path) -> Option<String> {
    let has = |file: &str| snapshot.join(file).is_file();
    let needed = ["config.json", "tokenizer.json"].map(str::to_owned);
    let weights = if has(select::INDEX) {
        let index = read_small(&snapshot.join(select::INDEX)).ok();
        let files = index.and_then(|text| select::files_of_index(&text).ok());
        files.unwrap_or_else(|| vec![select::INDEX.to_owned() + " in a readable form"])
    } else {
        vec![select::SINGLE.to_owned()]
    };
    needed.into_iter().chain(weights).find(|file| !has(file))
}

pub(crate) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > SMALL_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "is larger than 64 MiB"));
    }
    fs::read(path)
}

pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == COMMIT_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a word of the hub can be a file's name: an etag, a commit.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=128).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_resolve_and_a_snapshot_knows_what_it_lacks() {
        let cache = std::env::temp_dir().join(format!("pinion-hub-layout-{}", std::process::id()));
        let layout = Layout::new(&cache, "a/b");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let snapshot = layout.snapshot(commit);
        fs::create_dir_all(layout.blob("x").parent().unwrap()).unwrap();
        fs::write(layout.blob("x"), r#"{"weight_map": {"t": "one.safetensors"}}"#).unwrap();
        let mut lacked = Vec::new();
        for file in [
            "config.json",
            "tokenizer.json",
            "additional_chat_templates/t.jinja",
            select::INDEX,
            "one.safetensors",
        ] {
            lacked.extend(lacks(&snapshot));
            layout.link(commit, file, "x").unwrap();
            layout.link(commit, file, "x").unwrap();
            assert!(snapshot.join(file).is_file(), "{file}");
        }
        assert_eq!(
            lacked,
            ["config.json", "tokenizer.json", select::SINGLE, select::SINGLE, "one.safetensors"]
        );
        assert_eq!(lacks(&snapshot), None);
        assert_eq!(layout.commit_of("refs/pr/1"), None);
        layout.note("refs/pr/1", commit).unwrap();
        assert_eq!(layout.commit_of("refs/pr/1").as_deref(), Some(commit));
        fs::remove_dir_all(cache).unwrap();
    }

    #[test]
    fn words_of_the_hub_are_names_of_files() {
        assert!(is_name("a-1.b_c"));
        for wrong in ["", ".", "..", "a/b", ".a", "a b", "é"] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
