//! A hub of models on loopback that answers as the Hugging Face hub does: a list of files, hashes in headers, large
//! files by a redirect to another host, ranges; and it can cut, lie and refuse as told.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The commit of every hub of the kit.
pub const COMMIT: &str = "5a1f0c3e7d9b2468ace013579bdf02468ace1357";

/// What a hub does wrong, for the next requests of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The connection ends after this number of bytes of the body.
    Cut(usize),
    /// As many bytes as told, then none, until the client leaves.
    Stall(usize),
    /// This status, with these header fields.
    Refuse(u16, Vec<(&'static str, &'static str)>),
    /// Bytes of the right number and of the wrong values.
    Corrupt,
    /// The whole file, whatever range was asked for.
    WholeFile,
}

/// One request as the hub saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether it came to the host of large files.
    pub at_storage: bool,
    /// GET or HEAD.
    pub method: String,
    /// With its query.
    pub path: String,
    /// The bearer token, if one was sent.
    pub token: Option<String>,
    /// Where the range begins, if one was asked for.
    pub from: Option<usize>,
}

#[derive(Default)]
struct Inner {
    /// A file's bytes; its etag; whether it is a large one.
    files: BTreeMap<String, (Vec<u8>, String, bool)>,
    /// By the file's name, or `list`; taken one by one.
    troubles: Vec<(String, Trouble)>,
    /// A size that is told instead of the true one.
    claimed: BTreeMap<String, u64>,
    seen: Vec<Seen>,
}

/// The hub `org/name` with two revisions: `main` and `refs/pr/1`.
pub struct Hub {
    inner: Arc<Mutex<Inner>>,
    hub: SocketAddr,
}

impl Hub {
    /// With these files; the large ones are named by the sha256 of their bytes, as the hub names them.
    pub fn new(files: &[(&str, &[u8])], sha256: impl Fn(&[u8]) -> String) -> Hub {
        let inner = Arc::new(Mutex::new(Inner::default()));
        for (name, bytes) in files {
            let is_large = name.ends_with(".safetensors") || name.ends_with(".bin");
            // The others have git's name for them, of which only the form matters.
            let etag = if is_large { sha256(bytes) } else { sha256(bytes)[..40].to_owned() };
            lock(&inner).files.insert((*name).to_owned(), (bytes.to_vec(), etag, is_large));
        }
        // Another address of loopback is another host.
        let storage = TcpListener::bind("127.0.0.2:0").expect("127.0.0.2 is loopback");
        let hub = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let storage_address = storage.local_addr().expect("a listener has an address");
        let address = hub.local_addr().expect("a listener has an address");
        for (listener, at_storage) in [(hub, false), (storage, true)] {
            let inner = inner.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let inner = inner.clone();
                    std::thread::spawn(move || serve(stream, &inner, at_storage, storage_address));
                }
            });
        }
        Hub { inner, hub: address }
    }

    /// With every file of a folder.
    pub fn of_folder(folder: &Path, sha256: impl Fn(&[u8]) -> String) -> Hub {
        let entries = std::fs::read_dir(folder).expect("the folder can be read");
        let files: Vec<(String, Vec<u8>)> = entries
            .flatten()
            .filter(|entry| entry.path().is_file())
            .map(|entry| {
                let bytes = std::fs::read(entry.path()).expect("a file can be read");
                (entry.file_name().to_string_lossy().into_owned(), bytes)
            })
            .collect();
        let files: Vec<(&str, &[u8])> =
            files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
        Hub::new(&files, sha256)
    }

    /// For HF_ENDPOINT.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.hub)
    }

    /// The next request of this file's bytes, or of `list`, meets it; several are met one after another.
    pub fn trouble(&self, file: &str, trouble: Trouble) {
        lock(&self.inner).troubles.push((file.to_owned(), trouble));
    }

    /// The file is said to be of this size.
    pub fn claim_size(&self, file: &str, size: u64) {
        lock(&self.inner).claimed.insert(file.to_owned(), size);
    }

    /// What has been asked so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.inner).seen.clone()
    }

    /// The etag of a file.
    pub fn etag(&self, file: &str) -> String {
        lock(&self.inner).files[file].1.clone()
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection, until its client leaves.
fn serve(stream: TcpStream, inner: &Mutex<Inner>, at_storage: bool, storage: SocketAddr) {
    let Ok(mut reader) = stream.try_clone().map(BufReader::new) else { return };
    while let Some(seen) = read_request(&mut reader, at_storage) {
        lock(inner).seen.push(seen.clone());
        if answer(&stream, inner, &seen, storage).is_err() {
            // A client that has gone needs no answer.
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead, at_storage: bool) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let mut seen = Seen { at_storage, method: words.next()?, path: words.next()?, token: None, from: None };
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok().filter(|count| *count > 0)?;
        let Some((name, value)) = field.trim_end().split_once(": ") else { return Some(seen) };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => seen.token = value.strip_prefix("Bearer ").map(str::to_owned),
            "range" => {
                seen.from =
                    value.strip_prefix("bytes=").and_then(|range| range.trim_end_matches('-').parse().ok())
            }
            _ => {}
        }
    }
}

fn answer(
    mut stream: &TcpStream,
    inner: &Mutex<Inner>,
    seen: &Seen,
    storage: SocketAddr,
) -> std::io::Result<()> {
    let path = seen.path.split('?').next().unwrap_or_default();
    let listed = ["/api/models/org/name/revision/main", "/api/models/org/name/revision/refs%2Fpr%2F1"];
    let file =
        path.strip_prefix(&format!("/org/name/resolve/{COMMIT}/")).or_else(|| path.strip_prefix("/storage/"));
    let key = if path.starts_with("/api/") { "list" } else { file.unwrap_or_default() };
    let trouble = {
        let mut inner = lock(inner);
        // The head of a file is told truly: the trouble is with its bytes.
        let at =
            inner.troubles.iter().position(|(of, _)| of == key && (seen.method == "GET" || key == "list"));
        // A large file meets it at the storage.
        let large = inner.files.get(key).is_some_and(|(_, _, is_large)| *is_large);
        at.filter(|_| !large || seen.at_storage).map(|at| inner.troubles.remove(at).1)
    };
    if let Some(Trouble::Refuse(status, fields)) = &trouble {
        return head(stream, *status, fields, 0);
    }
    if listed.contains(&path) {
        let names: Vec<_> =
            lock(inner).files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let text = serde_json::json!({"id": "org/name", "sha": COMMIT, "siblings": names}).to_string();
        head(stream, 200, &[("Content-Type", "application/json")], text.len() as u64)?;
        return stream.write_all(text.as_bytes());
    }
    if path.starts_with("/api/models/org/name/") {
        return head(stream, 404, &[("X-Error-Code", "RevisionNotFound")], 0);
    }
    let found = file.and_then(|file| lock(inner).files.get(file).cloned());
    let Some((bytes, etag, is_large)) = found else {
        // What is missing and what is private look alike to those it does not know.
        return head(stream, 401, &[("X-Error-Code", "RepoNotFound")], 0);
    };
    let size = lock(inner).claimed.get(key).copied().unwrap_or(bytes.len() as u64);
    let (quoted, sized) = (format!("\"{etag}\""), size.to_string());
    if is_large && !seen.at_storage {
        let to = format!("http://{storage}/storage/{key}?signature=1");
        let fields = [
            ("Location", &to[..]),
            ("X-Linked-Etag", &quoted),
            ("X-Linked-Size", &sized),
            ("X-Repo-Commit", COMMIT),
        ];
        return head(stream, 302, &fields, 0);
    }
    if seen.method == "HEAD" {
        return head(stream, 200, &[("ETag", &quoted), ("X-Repo-Commit", COMMIT)], size);
    }
    send(stream, seen, bytes, trouble)
}

/// The bytes that were asked for, with their trouble.
fn send(
    mut stream: &TcpStream,
    seen: &Seen,
    mut bytes: Vec<u8>,
    trouble: Option<Trouble>,
) -> std::io::Result<()> {
    let from = seen.from.filter(|_| trouble != Some(Trouble::WholeFile)).unwrap_or(0).min(bytes.len());
    let range = format!("bytes {from}-{}/{}", bytes.len().saturating_sub(1), bytes.len());
    if trouble == Some(Trouble::Corrupt) {
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    }
    let rest = &bytes[from..];
    match from {
        0 => head(stream, 200, &[], rest.len() as u64)?,
        _ => head(stream, 206, &[("Content-Range", &range)], rest.len() as u64)?,
    }
    match trouble {
        Some(Trouble::Cut(count)) => {
            stream.write_all(&rest[..count.min(rest.len())])?;
            Err(std::io::ErrorKind::ConnectionAborted.into())
        }
        Some(Trouble::Stall(count)) => {
            stream.write_all(&rest[..count.min(rest.len())])?;
            // A read ends when the client has left.
            stream.set_read_timeout(Some(Duration::from_secs(120)))?;
            std::io::Read::read(&mut stream, &mut [0]).map(drop)
        }
        _ => stream.write_all(rest),
    }
}

fn head(mut stream: &TcpStream, status: u16, fields: &[(&str, &str)], length: u64) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} Told\r\nContent-Length: {length}\r\n");
    fields.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    stream.write_all((text + "\r\n").as_bytes())
}
