//! A collector of traces on loopback that takes OTLP as JSON over HTTP, and can refuse, hang and reject as told.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a collector does with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// It takes it.
    Takes,
    /// It takes it but for this number of spans.
    Rejects(u64),
    /// It answers this status.
    Refuses(u16),
    /// It reads it and says nothing, until the other side leaves.
    Hangs,
}

/// One span that was taken.
#[derive(Clone, Debug)]
pub struct TakenSpan {
    /// As it was sent.
    pub json: Value,
    /// Its attributes by name; arrays as lists of their values.
    pub attributes: BTreeMap<String, Value>,
}

impl TakenSpan {
    fn of(json: &Value) -> TakenSpan {
        TakenSpan { json: json.clone(), attributes: attributes(&json["attributes"]) }
    }

    /// A member that is a text; empty if it is not there.
    pub fn text(&self, member: &str) -> &str {
        self.json[member].as_str().unwrap_or_default()
    }

    /// Its beginning and its end.
    pub fn interval(&self) -> [u64; 2] {
        ["startTimeUnixNano", "endTimeUnixNano"].map(|member| {
            self.text(member)
                .parse()
                .unwrap_or_else(|_| panic!("{member} is a number in a string: {:?}", self.json))
        })
    }

    /// Whether its status is an error.
    pub fn failed(&self) -> bool {
        self.json["status"]["code"] == 2
    }
}

fn attributes(list: &Value) -> BTreeMap<String, Value> {
    let pair = |pair: &Value| (pair["key"].as_str().expect("a key").to_owned(), plain(&pair["value"]));
    list.as_array().expect("attributes are a list").iter().map(pair).collect()
}

/// A value without the name of its type.
fn plain(value: &Value) -> Value {
    let (kind, inner) = value.as_object().and_then(|value| value.iter().next()).expect("a typed value");
    match kind.as_str() {
        "stringValue" | "doubleValue" => inner.clone(),
        "intValue" => json!(inner.as_str().expect("a string").parse::<i64>().expect("a number in it")),
        "arrayValue" => inner["values"].as_array().expect("values").iter().map(plain).collect(),
        other => panic!("{other} is no kind of value that is sent"),
    }
}

struct Inner {
    mood: Mood,
    bodies: Vec<String>,
    /// Batches that were read, taken or not.
    batches: usize,
    heads: Vec<String>,
}

/// A collector.
pub struct Collector {
    inner: Arc<Mutex<Inner>>,
    address: SocketAddr,
}

impl Collector {
    /// One in this mood.
    pub fn new(mood: Mood) -> Collector {
        let inner = Arc::new(Mutex::new(Inner { mood, bodies: Vec::new(), batches: 0, heads: Vec::new() }));
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let shared = inner.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Collector { inner, address }
    }

    /// For `--otlp-traces-endpoint`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on.
    pub fn become_one_that(&self, mood: Mood) {
        lock(&self.inner).mood = mood;
    }

    /// Batches that came.
    pub fn batches(&self) -> usize {
        lock(&self.inner).batches
    }

    /// The bodies of the batches that were taken.
    pub fn bodies(&self) -> Vec<String> {
        lock(&self.inner).bodies.clone()
    }

    /// The heads of all requests, in lower case.
    pub fn heads(&self) -> Vec<String> {
        lock(&self.inner).heads.clone()
    }

    /// The attributes of the resource, the same in every batch.
    pub fn resource(&self) -> BTreeMap<String, Value> {
        let mut resources = self.bodies().into_iter().map(|body| {
            let body: Value = serde_json::from_str(&body).expect("JSON");
            attributes(&body["resourceSpans"][0]["resource"]["attributes"])
        });
        let first = resources.next().expect("a batch");
        assert!(resources.all(|resource| resource == first));
        first
    }

    /// All spans that were taken.
    pub fn spans(&self) -> Vec<TakenSpan> {
        let mut spans = Vec::new();
        for body in self.bodies() {
            let body: Value = serde_json::from_str(&body).expect("JSON");
            for resource in body["resourceSpans"].as_array().expect("a list") {
                for scope in resource["scopeSpans"].as_array().expect("a list") {
                    spans.extend(scope["spans"].as_array().expect("a list").iter().map(TakenSpan::of));
                }
            }
        }
        spans
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers the requests of one connection, one after another.
fn serve(stream: TcpStream, inner: &Mutex<Inner>) {
    let mut reader = BufReader::new(stream);
    while let Some((head, body)) = request(&mut reader) {
        let mood = {
            let mut inner = lock(inner);
            inner.heads.push(head);
            inner.batches += 1;
            if matches!(inner.mood, Mood::Takes | Mood::Rejects(_)) {
                inner.bodies.push(body);
            }
            inner.mood
        };
        let (status, answer) = match mood {
            Mood::Takes => (200, "{}".to_owned()),
            Mood::Rejects(count) => {
                (200, json!({"partialSuccess": {"rejectedSpans": count.to_string()}}).to_string())
            }
            Mood::Refuses(status) => (status, "{}".to_owned()),
            Mood::Hangs => {
                // Until the connection ends.
                let _ = reader.read(&mut [0]);
                return;
            }
        };
        let head = format!(
            "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        if reader.get_mut().write_all((head + &answer).as_bytes()).is_err() {
            return;
        }
    }
}

/// The next request's head in lower case, and its body.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&line);
        head.push('\n');
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8(body).ok()?))
}
