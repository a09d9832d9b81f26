//! W3C Trace Context: the trace that a request belongs to, as its `traceparent` and `tracestate` fields say. What
//! cannot be read is no trace, and no reason to refuse a request.

use crate::limits::{TRACE_STATE_BYTES_MAX, TRACE_STATE_MEMBERS_MAX};
use hyper::HeaderMap;

/// Length of a `traceparent` of version 00.
const PARENT_BYTES: usize = 55;
/// The flag that says that the caller records the trace.
const SAMPLED: u64 = 1;

/// The span that a request was sent from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    /// Its trace.
    pub(crate) trace_id: u128,
    /// Itself.
    pub(crate) span_id: u64,
    /// The trace is recorded.
    pub(crate) sampled: bool,
    /// What tracing systems on the way have added.
    pub(crate) state: String,
}

impl Parent {
    /// As a request's head has it, if it has one field that can be read.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Parent> {
        let mut fields = headers.get_all("traceparent").iter();
        let (field, None) = (fields.next()?, fields.next()) else { return None };
        let (trace_id, span_id, flags) = read(field.as_bytes())?;
        Some(Parent { trace_id, span_id, sampled: flags & SAMPLED != 0, state: state(headers) })
    }
}

/// `VERSION-TRACE-PARENT-FLAGS`; a later version may go on after that.
fn read(text: &[u8]) -> Option<(u128, u64, u64)> {
    let dashes = [2, 35, 52].into_iter().all(|at| text.get(at) == Some(&b'-'));
    let (version, flags) = (number(text, 0, 2)?, number(text, 53, 2)?);
    let ends = match version {
        0 => text.len() == PARENT_BYTES,
        0xff => false,
        _ => text.get(PARENT_BYTES).is_none_or(|byte| *byte == b'-'),
    };
    let (high, low, span_id) = (number(text, 3, 16)?, number(text, 19, 16)?, number(text, 36, 16)?);
    let trace_id = u128::from(high) << 64 | u128::from(low);
    (dashes && ends && trace_id != 0 && span_id != 0).then_some((trace_id, span_id, flags))
}

/// The number in `digits` hexadecimal digits, which have no capitals.
fn number(text: &[u8], at: usize, digits: usize) -> Option<u64> {
    let digit = |byte: &u8| match byte {
        b'0'..=b'9' => Some(u64::from(byte - b'0')),
        b'a'..=b'f' => Some(u64::from(byte - b'a') + 10),
        _ => None,
    };
    text.get(at..at + digits)?.iter().try_fold(0, |number, byte| Some(number << 4 | digit(byte)?))
}

/// All `tracestate` fields as one list; empty if it is none, or too long.
fn state(headers: &HeaderMap) -> String {
    let mut list = String::new();
    for field in headers.get_all("tracestate") {
        let Ok(text) = field.to_str() else { return String::new() };
        for member in text.split(',').map(str::trim).filter(|member| !member.is_empty()) {
            if !list.is_empty() {
                list.push(',');
            }
            list.push_str(member);
        }
        if list.len() > TRACE_STATE_BYTES_MAX {
            return String::new();
        }
    }
    let is_pair = |member: &str| member.find('=').is_some_and(|at| at > 0);
    let fits = list.split(',').count() <= TRACE_STATE_MEMBERS_MAX && list.split(',').all(is_pair);
    if fits { list } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn parent(fields: &[(&'static str, &str)]) -> Option<Parent> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        Parent::of(&headers)
    }

    #[test]
    fn a_trace_is_taken_from_the_head() {
        let read = Parent {
            trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            span_id: 0x00f0_67aa_0ba9_02b7,
            sampled: true,
            state: String::new(),
        };
        assert_eq!(parent(&[("traceparent", PARENT)]), Some(read.clone()));
        for (flags, sampled) in [("00", false), ("02", false), ("03", true), ("ff", true)] {
            let text = format!("{}{flags}", &PARENT[..53]);
            assert_eq!(
                parent(&[("traceparent", &text)]),
                Some(Parent { sampled, ..read.clone() }),
                "{flags}"
            );
        }
        for later in ["cc-", "01-"] {
            let text = format!("{later}{}", &PARENT[3..]);
            assert_eq!(parent(&[("traceparent", &text)]), Some(read.clone()), "{text}");
            let text = format!("{text}-what-comes-later");
            assert_eq!(parent(&[("traceparent", &text)]), Some(read.clone()), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_trace() {
        assert_eq!(parent(&[]), None);
        assert_eq!(parent(&[("tracestate", "a=b")]), None);
        assert_eq!(parent(&[("traceparent", PARENT), ("traceparent", PARENT)]), None, "two of them");
        for text in [
            "",
            "00",
            &PARENT[..54],
            &PARENT.to_uppercase(),
            &PARENT.replace('-', "_"),
            &format!("{PARENT}0"),
            &format!("{PARENT}-"),
            &format!("ff{}", &PARENT[2..]),
            &format!("01{}0", &PARENT[2..]),
            &format!("0x{}", &PARENT[2..]),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7--1",
            "00-4bf92f3577b34da6a3ce929d0e0e473 -00f067aa0ba902b7-01",
        ] {
            assert_eq!(parent(&[("traceparent", text)]), None, "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::from_bytes(&[0xe9; PARENT_BYTES]).unwrap());
        assert_eq!(Parent::of(&headers), None);
    }

    #[test]
    fn the_state_is_one_list_or_none() {
        let state = |fields: &[&str]| {
            let fields = fields.iter().map(|text| ("tracestate", *text));
            let all: Vec<_> = std::iter::once(("traceparent", PARENT)).chain(fields).collect();
            parent(&all).unwrap().state
        };
        assert_eq!(state(&[]), "");
        assert_eq!(state(&["a=1"]), "a=1");
        assert_eq!(state(&["a=1, b@c=2=3 ,", "d=4"]), "a=1,b@c=2=3,d=4");
        for text in
            ["a", "=1", "a=1,b", &format!("a={}", "x".repeat(TRACE_STATE_BYTES_MAX)), &"a=1,".repeat(33)]
        {
            assert_eq!(state(&[text]), "", "{text}");
        }
        assert_eq!(state(&[&"a=1,".repeat(32)]).split(',').count(), 32);
    }
}
