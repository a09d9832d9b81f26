//! What each kind of request must be answered with: the answers of a run that nothing disturbed.

use super::kinds::{Ends, Kind, kinds};
use super::reply::{Choice, Reply, ask};
use pinion_testkit::{End, Server};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two logprobs of one token may be this far apart. A resumed request computes in a prompt chunk what it had computed
/// row by row, and fp32 sums in another order.
pub(crate) const LOGPROB_BOUND: f64 = 1e-3;
/// Of every service. Several threads of an engine that wait for each other make no progress where other programs use
/// the cores.
pub(crate) const FLAGS: [&str; 4] = ["--dtype", "fp32", "--engine-threads", "1"];
/// Requests under way at once, here and in the rounds.
pub(crate) const CLIENTS: usize = 8;

/// The kinds and their answers.
pub(crate) struct Reference {
    pub(crate) kinds: Vec<Kind>,
    replies: Vec<Reply>,
}

/// What may become of a request besides its whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Losses {
    /// The connection breaks: its frontend died.
    pub(crate) cut: bool,
    /// It ends with one of these errors.
    pub(crate) errors: &'static [&'static str],
}

impl Losses {
    pub(crate) const NONE: Losses = Losses { cut: false, errors: &[] };
}

impl Reference {
    /// Asks each kind, once per test process.
    pub(crate) fn get(model: &Path) -> &'static Reference {
        static REFERENCE: OnceLock<Reference> = OnceLock::new();
        REFERENCE.get_or_init(|| {
            let server = Server::start(model, &FLAGS);
            let kinds = kinds();
            let replies = ask_all(&server, &kinds);
            server.wait_idle();
            server.stop();
            kinds.iter().zip(&replies).for_each(|(kind, reply)| check_kind(kind, reply));
            Reference { kinds, replies }
        })
    }

    /// Asks every kind and checks each answer. Nothing may be lost.
    pub(crate) fn check_all(&self, server: &Server) {
        let replies = ask_all(server, &self.kinds);
        replies.iter().enumerate().for_each(|(index, reply)| self.check(index, reply, Losses::NONE));
    }

    /// Checks one answer.
    ///
    /// # Panics
    /// If it is another one than without disturbance, or is lost in a way that is not allowed.
    pub(crate) fn check(&self, index: usize, reply: &Reply, losses: Losses) {
        let (kind, wanted) = (&self.kinds[index], &self.replies[index]);
        match &reply.end {
            End::Complete => {
                let indices = |reply: &Reply| reply.choices.keys().copied().collect::<Vec<_>>();
                assert_eq!(indices(reply), indices(wanted), "{}: other choices", kind.name);
                for (wanted, choice) in wanted.choices.values().zip(reply.choices.values()) {
                    check_choice(kind, choice, wanted);
                }
                assert_eq!(reply.usage, wanted.usage, "{}: tokens of prompt and answer", kind.name);
            }
            End::Error(code) => {
                assert!(losses.errors.contains(&code.as_str()), "{}: error {code}", kind.name);
                check_beginning(kind, &reply.choices, &wanted.choices);
            }
            End::Cut(how) => {
                // A stream of bare text has no other way to say that it failed.
                let is_error = kind.is_bare_stream() && !losses.errors.is_empty();
                assert!(losses.cut || is_error, "{}: {how}, and no frontend had died", kind.name);
                check_beginning(kind, &reply.choices, &wanted.choices);
            }
        }
    }
}

/// Asks every kind, [`CLIENTS`] at once.
fn ask_all(server: &Server, kinds: &[Kind]) -> Vec<Reply> {
    let next = AtomicUsize::new(0);
    let take = || Some(next.fetch_add(1, Ordering::SeqCst)).filter(|&index| index < kinds.len());
    let client =
        || std::iter::from_fn(take).map(|index| (index, ask(server, &kinds[index]))).collect::<Vec<_>>();
    let mut replies: Vec<(usize, Reply)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client's thread")).collect()
    });
    replies.sort_by_key(|(index, _)| *index);
    replies.into_iter().map(|(_, reply)| reply).collect()
}

/// A kind must show what its name says, or comparing it shows nothing.
fn check_kind(kind: &Kind, reply: &Reply) {
    let Kind { name, body, .. } = kind;
    assert_eq!(reply.end, End::Complete, "{name}: {reply:?}");
    assert_eq!(reply.choices.len() as u64, kind.choices(), "{name}");
    assert_eq!(reply.usage.is_some(), kind.has_usage(), "{name}");
    for choice in reply.choices.values() {
        assert!(!choice.text.is_empty() || !choice.calls.is_empty(), "{name}: {choice:?}");
        assert_eq!(
            !choice.tokens.is_empty(),
            body["logprobs"].is_number() || body["logprobs"] == true,
            "{name}"
        );
        assert_eq!(!choice.prompt_ids.is_empty(), body["prompt_logprobs"].is_number(), "{name}");
        assert_eq!(!choice.calls.is_empty(), body["tools"].is_array(), "{name}: {choice:?}");
        let reason = match kind.ends {
            Ends::Any => continue,
            Ends::Length => "length",
            Ends::Stop | Ends::StopString => "stop",
            Ends::ToolCalls => "tool_calls",
        };
        assert_eq!(choice.finish_reason.as_deref(), Some(reason), "{name}: {choice:?}");
    }
}

fn check_choice(kind: &Kind, choice: &Choice, wanted: &Choice) {
    let name = &kind.name;
    assert_eq!(choice.text, wanted.text, "{name}: another text");
    assert_eq!(choice.calls, wanted.calls, "{name}: other calls");
    assert_eq!(choice.finish_reason, wanted.finish_reason, "{name}: another finish reason");
    assert_eq!(choice.tokens, wanted.tokens, "{name}: other tokens");
    assert_eq!(choice.prompt_ids, wanted.prompt_ids, "{name}: other ids in the prompt's logprobs");
    check_logprobs(name, &choice.logprobs, &wanted.logprobs);
    check_logprobs(name, &choice.prompt_logprobs, &wanted.prompt_logprobs);
}

fn check_logprobs(name: &str, found: &[Option<f64>], wanted: &[Option<f64>]) {
    assert_eq!(found.len(), wanted.len(), "{name}: as many logprobs");
    for (at, pair) in found.iter().zip(wanted).enumerate() {
        let near = match pair {
            (Some(found), Some(wanted)) => (found - wanted).abs() <= LOGPROB_BOUND,
            (found, wanted) => found == wanted,
        };
        assert!(near, "{name}: logprob {at} is {:?}, not {:?}", pair.0, pair.1);
    }
}

/// What came before a loss is the beginning of what should have come.
fn check_beginning(kind: &Kind, found: &BTreeMap<u64, Choice>, wanted: &BTreeMap<u64, Choice>) {
    for (index, choice) in found {
        let name = format!("{}, choice {index}", kind.name);
        let wanted = wanted.get(index).unwrap_or_else(|| panic!("{name}: a choice too many"));
        assert!(wanted.text.starts_with(&choice.text), "{name}: not a beginning: {:?}", choice.text);
        assert!(wanted.tokens.starts_with(&choice.tokens), "{name}: other tokens: {:?}", choice.tokens);
        assert!(choice.calls.len() <= wanted.calls.len(), "{name}: {:?}", choice.calls);
        for (call, wanted) in choice.calls.iter().zip(&wanted.calls) {
            assert!(call.0 == wanted.0 && wanted.1.starts_with(&call.1), "{name}: {call:?}");
        }
    }
}
