//! Records in, records out: many streams at once against the decode of the whole and a naive stop search.

#![allow(clippy::unwrap_used)] // a failed unwrap here is a failed test

mod bench;

use bench::{Bench, EOS, RECORD_BYTES_MAX, Received, SLOTS, end, event, marked_codec, oracle};
use pinion_protocol::RequestId;
use pinion_protocol::detokenizer_inbox::{EVENT_EOS, EVENT_LAST, Open, TokenEvent, encode_step, kind};
use pinion_protocol::frontend_inbox::{DELTA_PROMPT, deltas};
use pinion_protocol::names::Stage;
use pinion_protocol::prompt_scores::{
    PROMPT_FIRST, PromptHeader, PromptScore, decode_prompt_scores, encode_prompt,
};
use pinion_protocol::scores::{LogprobEntry, Score, TokenScore};
use pinion_shm::slots::SlotTable;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Streams over two frontends, their events interleaved; some end by a token, some without one.
    #[test]
    fn every_stream_equals_the_decode_of_the_whole(
        streams in prop::collection::vec(
            (
                prop_oneof![
                    "[ab é終👩🏽\u{200d}]{0,12}".prop_map(|s| s.bytes().map(u32::from).collect::<Vec<u32>>()),
                    prop::collection::vec(0_u32..258, 0..20),
                ],
                prop::collection::vec("[ab é終]{1,3}", 0..3),
                any::<bool>(),
            ),
            1..12,
        ),
        record_bytes_max in prop_oneof![Just(RECORD_BYTES_MAX), Just(64_usize)],
        interval in prop_oneof![Just(1_u32), 2..20_u32],
    ) {
        let tables = (0..2).map(|_| SlotTable::create(1, 1, SLOTS).unwrap()).collect();
        let mut bench = Bench::with_interval(tables, record_bytes_max, interval);
        let mut live = Vec::new();
        for (index, (ids, stops, ends_bare)) in streams.iter().enumerate() {
            let stop: Vec<&str> = stops.iter().map(String::as_str).collect();
            let id = bench.open(index as u16 % 2, index as u16 / 2, &stop, &[]);
            live.push((id, ids, stops, *ends_bare));
        }
        for turn in 0..=48_usize {
            let events: Vec<TokenEvent> = live.iter().filter_map(|(id, ids, _, ends_bare)| {
                let is_final = turn + 1 == ids.len() && !ends_bare;
                match ids.get(turn) {
                    Some(&token) => Some(event(*id, token, turn as u32, if is_final { EVENT_LAST } else { 0 })),
                    None if turn == ids.len() && (*ends_bare || ids.is_empty()) => Some(end(*id)),
                    None => None,
                }
            }).collect();
            bench.step(&events);
        }
        for (id, ids, stops, _) in live {
            let received = &bench.received[&id];
            let (text, stopped) = oracle(ids, stops);
            prop_assert_eq!((&received.text, received.stopped, received.last), (&text, stopped, true));
            prop_assert!(ids.starts_with(&received.ids) && (stopped || ids.len() == received.ids.len()));
            prop_assert_eq!(bench.slot_state(id).stopped, stopped);
            prop_assert_eq!(bench.stamped(id, Stage::FirstText) != 0, !text.is_empty());
            prop_assert!(bench.stamped(id, Stage::LastText) >= bench.stamped(id, Stage::FirstText).max(1));
        }
        prop_assert_eq!(bench.detokenizer.counts().states, 0);
        prop_assert_eq!(bench.detokenizer.counts().stale, 0);
    }
}

#[test]
fn a_stop_string_ends_the_text_at_once_and_the_rest_is_ignored() {
    let mut bench = Bench::new(1, RECORD_BYTES_MAX);
    let id = bench.open(0, 3, &["bc"], &[]);
    for (sequence, token) in "abc".bytes().enumerate() {
        bench.step(&[event(id, token.into(), sequence as u32, 0)]);
    }
    let expected = Received {
        text: "a".into(),
        ids: vec![97, 98, 99],
        next_sequence: 3,
        last: true,
        stopped: true,
        ..Received::default()
    };
    assert_eq!(bench.received[&id], expected);
    assert!(bench.slot_state(id).stopped);
    bench.step(&[event(id, 100, 3, 0)]);
    assert_eq!(bench.detokenizer.counts().states, 1, "kept until the engine says last");
    bench.step(&[event(id, 100, 4, EVENT_LAST)]);
    assert_eq!(bench.received[&id], expected);
    assert_eq!(bench.detokenizer.counts().states, 0);
}

#[test]
fn the_end_of_sequence_token_counts_and_shows_nothing() {
    let mut bench = Bench::new(1, RECORD_BYTES_MAX);
    let id = bench.open(0, 0, &[], &[]);
    // The event's flag decides, not the id: an id that would show text is hidden too.
    bench.step(&[event(id, 97, 0, 0)]);
    bench.step(&[event(id, 98, 1, EVENT_EOS)]);
    bench.step(&[event(id, 0xC3, 2, 0)]);
    bench.step(&[event(id, EOS, 3, EVENT_EOS | EVENT_LAST)]);
    let received = &bench.received[&id];
    assert_eq!((received.text.as_str(), &received.ids[..]), ("a\u{FFFD}", &[97, 98, 0xC3, EOS][..]));
}

#[test]
fn what_ended_the_text_is_sent_if_asked_for() {
    let mut bench = Bench::new(1, RECORD_BYTES_MAX);
    bench.form.include_stop = true;
    let by_string = bench.open(0, 0, &["bc", "z"], &[]);
    let by_token = bench.open(0, 1, &["bc"], &[]);
    let by_eos = bench.open(0, 2, &[], &[]);
    for (sequence, token) in "abcd".bytes().map(u32::from).enumerate() {
        bench.step(&[event(by_string, token, sequence as u32, 0)]);
    }
    bench.step(&[event(by_token, 97, 0, 0), event(by_eos, 97, 0, 0)]);
    let last = EVENT_EOS | EVENT_LAST;
    bench.step(&[event(by_token, 98, 1, last), event(by_eos, EOS, 1, last)]);
    for (id, text, stopped) in [(by_string, "abc", true), (by_token, "ab", false), (by_eos, "a", false)] {
        let received = &bench.received[&id];
        assert_eq!((received.text.as_str(), received.stopped, received.last), (text, stopped, true));
    }
}

#[test]
fn special_tokens_show_their_names_where_a_client_wants_them() {
    let mut bench = Bench::new(1, RECORD_BYTES_MAX);
    let hidden = bench.open(0, 0, &[], &[]);
    bench.form.special = true;
    let shown = bench.open(0, 1, &[], &[]);
    for (sequence, (token, flags)) in
        [(97, 0), (EOS, 0), (98, 0), (EOS, EVENT_EOS | EVENT_LAST)].into_iter().enumerate()
    {
        bench.step(&[hidden, shown].map(|id| event(id, token, sequence as u32, flags)));
    }
    assert_eq!(bench.received[&hidden].text, "ab");
    assert_eq!(bench.received[&shown].text, "a<|endoftext|>b", "but for the one that ends the text");
}

/// Each token's scores go with its delta, with the tokens' bytes; other requests of the step have none.
#[test]
fn scores_go_with_their_token() {
    let mut bench = Bench::new(1, RECORD_BYTES_MAX);
    let (scored, plain) = (bench.open(0, 0, &[], &[]), bench.open(0, 1, &[], &[]));
    let entry = |token, logprob| LogprobEntry { token, logprob };
    let logprobs = [entry(0xC3, -0.5), entry(97, -1.5), entry(EOS, -2.5)];
    let events = [event(plain, 98, 0, 0), TokenEvent { logprob_count: 3, ..event(scored, 0xC3, 0, 0) }];
    let mut payload = Vec::new();
    encode_step(&mut payload, 1, 1, &events, &logprobs);
    bench.detokenizer.step(kind::STEP, &payload, 1).unwrap();
    let record = bench.detokenizer.records(0).next().unwrap().to_vec();
    let all: Vec<_> = deltas(&record).map(Result::unwrap).collect();
    assert_eq!((all[0].text, all[0].scores()), ("b", Ok(vec![])));
    let score =
        |token, logprob, bytes: &[u8]| Score { token, logprob, bytes: bytes.to_vec(), special: false };
    let end = Score { special: true, ..score(EOS, -2.5, b"<|endoftext|>") };
    let alternatives = vec![score(97, -1.5, b"a"), end];
    let expected = TokenScore { drawn: score(0xC3, -0.5, b"\xc3"), alternatives };
    assert_eq!((all[1].text, all[1].scores()), ("", Ok(vec![expected])));

    // What does not add up is no honest record: the edge is replaced, and the token comes again.
    bench.detokenizer.clear();
    encode_step(
        &mut payload,
        2,
        2,
        &[TokenEvent { logprob_count: 9, ..event(scored, 0xA9, 1, 0) }],
        &logprobs,
    );
    assert!(bench.detokenizer.step(kind::STEP, &payload, 2).is_err());
    assert!(bench.detokenizer.records(0).next().is_none());
}

#[test]
fn a_resumed_stream_sends_only_what_was_not_sent_before() {
    let ids: Vec<u32> = "aé\n終b\n\nz".bytes().map(u32::from).collect();
    let whole: String = "aé\n終b".into();
    for cut in 0..ids.len() - 1 {
        let mut first = Bench::new(1, RECORD_BYTES_MAX);
        let old = first.open(0, 0, &["\n\n"], &[]);
        let mut second = Bench::new(1, RECORD_BYTES_MAX);
        let new = second.open(0, 0, &["\n\n"], &ids[..cut]);
        for (sequence, &token) in ids.iter().enumerate() {
            let bench = if sequence < cut { &mut first } else { &mut second };
            let id = if sequence < cut { old } else { new };
            bench.step(&[event(id, token, sequence as u32, 0)]);
        }
        let text = first.received[&old].text.clone() + &second.received[&new].text;
        assert_eq!(text, whole, "resumed after {cut} tokens");
        assert!(second.received[&new].stopped);
    }
}

#[test]
fn what_is_stale_or_unknown_is_dropped_and_counted() {
    let mut bench = Bench::new(1, RECORD_BYTES_MAX);
    let older = bench.open(0, 1, &[], &[]);
    let id = bench.open(0, 1, &[], &[]);
    assert_eq!(bench.step(&[event(older, 97, 0, EVENT_LAST)]), 0);
    assert_eq!(bench.detokenizer.counts().stale, 1);
    bench.open_as(older, &[], &[]);
    assert_eq!(bench.detokenizer.counts().stale, 2, "an opening whose slot has moved on");
    bench.step(&[event(id, 97, 0, EVENT_LAST)]);
    assert_eq!(bench.received[&id].text, "a");
    bench.step(&[event(id, 97, 1, EVENT_LAST)]);
    assert_eq!(bench.detokenizer.counts().stale, 3, "an event after the last one");
}

/// A request that there never was, a token that is not the next one, an unknown flag.
#[test]
fn what_no_engine_sends_is_an_error_and_changes_no_stream() {
    let mut bench = Bench::new(1, RECORD_BYTES_MAX);
    let id = bench.open(0, 1, &[], &[]);
    bench.step(&[event(id, 97, 0, 0)]);
    for wrong in [
        event(RequestId { generation: id.generation + 7, ..id }, 98, 1, 0),
        event(RequestId { slot: 2, ..id }, 98, 1, 0),
        event(RequestId { slot: u16::MAX, ..id }, 98, 1, 0),
        event(RequestId { frontend: 1, ..id }, 98, 1, 0),
        event(RequestId { frontend: u16::MAX, ..id }, 98, 1, 0),
        event(id, 98, 0, 0),
        event(id, 98, 2, 0),
        event(id, 98, 1, 1 << 7),
        event(id, 98, 1, 1 << 31),
    ] {
        let mut payload = Vec::new();
        encode_step(&mut payload, 1, 1, &[wrong], &[]);
        assert!(bench.detokenizer.step(kind::STEP, &payload, 1).is_err(), "{wrong:?}");
        assert!(bench.detokenizer.records(0).next().is_none(), "{wrong:?}");
    }
    assert_eq!(bench.detokenizer.counts().stale, 0);
    bench.step(&[event(id, 98, 1, EVENT_LAST)]);
    assert_eq!(bench.received[&id].text, "ab");
}

#[test]
fn malformed_records_change_nothing() {
    let mut bench = Bench::new(1, RECORD_BYTES_MAX);
    let id = bench.open(0, 1, &[], &[]);
    let mut open = Vec::new();
    Open { id, stop: vec!["x".into()], ..Open::default() }.encode(&mut open);
    let mut step = Vec::new();
    encode_step(&mut step, 1, 1, &[event(id, 97, 0, EVENT_LAST)], &[]);
    for cut in 0..open.len() {
        assert!(bench.detokenizer.open(0, kind::OPEN, &open[..cut]).is_err());
    }
    for cut in 0..step.len() {
        assert!(bench.detokenizer.step(kind::STEP, &step[..cut], 1).is_err());
    }
    assert!(bench.detokenizer.open(0, 77, &open).is_err());
    assert!(bench.detokenizer.step(77, &step, 1).is_err());
    assert!(bench.detokenizer.open(1, kind::OPEN, &open).is_err(), "from another frontend than it names");
    assert!(bench.detokenizer.records(0).next().is_none() && bench.detokenizer.records(9).next().is_none());
    bench.step(&[event(id, 120, 0, EVENT_LAST)]);
    assert_eq!(bench.received[&id].text, "x");
}

#[test]
fn no_way_of_ending_leaves_a_state_behind() {
    let mut bench = Bench::new(2, RECORD_BYTES_MAX);
    let states = |bench: &Bench| bench.detokenizer.counts().states;
    let kept = bench.open(0, 0, &[], &[]);
    let closed = bench.open(0, 1, &[], &[]);
    let reused = bench.open(0, 2, &[], &[]);
    bench.open(1, 0, &[], &[]);
    bench.open(1, 1, &[], &[]);
    assert_eq!(states(&bench), 5);
    bench.detokenizer.sweep();
    assert_eq!(states(&bench), 5, "a sweep touches nothing that is current");
    let again = bench.open(0, 2, &[], &[]);
    assert_eq!((states(&bench), again.generation), (5, reused.generation + 1));
    bench.tables[0].slot(1).unwrap().close(closed.generation);
    bench.detokenizer.sweep();
    assert_eq!(states(&bench), 4);
    bench.tables[1] = SlotTable::create(1, 2, SLOTS).unwrap();
    bench.detokenizer.replace_slots(1, bench.tables[1].clone());
    assert_eq!(states(&bench), 2);
    let fresh = bench.open(1, 0, &[], &[]);
    bench.step(&[event(fresh, 98, 0, EVENT_LAST), end(kept), end(again)]);
    assert_eq!(bench.received[&fresh].text, "b");
    assert_eq!(states(&bench), 0);
}

/// What the engine wrote for a dead frontend is read when its successor has begun a stream in the same slot.
#[test]
fn a_late_step_for_a_dead_frontend_says_nothing_to_its_successor() {
    let mut bench = Bench::new(1, RECORD_BYTES_MAX);
    let dead = bench.open(0, 0, &[], &[]);
    bench.tables[0] = SlotTable::create(1, 2, SLOTS).unwrap();
    bench.detokenizer.replace_slots(0, bench.tables[0].clone());
    let fresh = bench.open(0, 0, &[], &[]);
    bench.step(&[event(dead, 98, 0, 0)]);
    bench.step(&[event(fresh, 97, 0, EVENT_LAST)]);
    assert_eq!(bench.received[&fresh].text, "a");
    assert_eq!(bench.detokenizer.counts().stale, 1);
}

#[test]
fn a_frontend_that_stops_reading_loses_its_requests_and_no_others() {
    let mut bench = Bench::new(2, RECORD_BYTES_MAX);
    let lost = bench.open(0, 0, &[], &[]);
    let bystander = bench.open(1, 0, &[], &[]);
    bench.detokenizer.abandon(0);
    assert!(bench.slot_state(lost).cancelled && !bench.slot_state(bystander).cancelled);
    bench.step(&[event(lost, 97, 0, 0), event(bystander, 97, 0, 0)]);
    assert_eq!(bench.received[&lost], Received::default(), "nothing more until its end");
    bench.received.get_mut(&lost).unwrap().next_sequence = 1; // the hole
    bench.step(&[event(bystander, 98, 1, EVENT_LAST), TokenEvent { sequence: 1, ..end(lost) }]);
    assert_eq!(bench.received[&bystander].text, "ab");
    assert!(bench.received[&lost].last && bench.received[&lost].text.is_empty());
    assert_eq!(bench.detokenizer.counts().states, 0);
}

/// The first text leaves at once, then every eighth token, then the tail; what is too much for one delta leaves
/// earlier.
#[test]
fn stream_interval_sends_the_first_text_at_once_and_the_tail_with_the_end() {
    let tables = vec![SlotTable::create(1, 1, SLOTS).unwrap()];
    let mut bench = Bench::with_interval(tables, RECORD_BYTES_MAX, 8);
    let id = bench.open(0, 0, &[], &[]);
    // The first character has two bytes, so the first text comes with the second token.
    let bytes: Vec<u8> = "é".bytes().chain(std::iter::repeat_n(b'a', 20)).collect();
    let mut told = Vec::new();
    for (sequence, &byte) in bytes.iter().enumerate() {
        let last = if sequence + 1 == bytes.len() { EVENT_LAST } else { 0 };
        bench.step(&[event(id, byte.into(), sequence as u32, last)]);
        told.push(bench.received[&id].ids.len());
    }
    let expected: Vec<usize> = (1..=22)
        .map(|n| match n {
            1 | 2 => n,
            22 => 22,
            n => 2 + (n - 2) / 8 * 8,
        })
        .collect();
    assert_eq!(told, expected);
    assert_eq!(bench.received[&id].text, format!("é{}", "a".repeat(20)));

    let id = bench.open(0, 1, &[], &[]);
    bench.step(&[event(id, 97, 0, 0)]);
    let logprobs: Vec<LogprobEntry> = (0..20).map(|token| LogprobEntry { token, logprob: -1.0 }).collect();
    for sequence in 1..4 {
        let mut payload = Vec::new();
        let scored = TokenEvent { logprob_count: 20, ..event(id, 97, sequence, 0) };
        encode_step(&mut payload, 1, 1, &[scored], &logprobs);
        bench.detokenizer.step(kind::STEP, &payload, 1).unwrap();
    }
    let records: Vec<Vec<u8>> = bench.detokenizer.records(0).map(<[u8]>::to_vec).collect();
    let sent =
        records.iter().flat_map(|record| deltas(record)).map(|delta| delta.unwrap().scores().unwrap().len());
    assert_eq!(sent.collect::<Vec<_>>(), [1, 1], "two of 260 bytes are more than fit, and the third waits");
}

/// The claim of the module: no allocation per token once the buffers have grown.
#[test]
fn a_token_costs_no_allocation() {
    [1, 8].into_iter().for_each(check_allocations);
}

fn check_allocations(interval: u32) {
    let tables = vec![SlotTable::create(1, 1, SLOTS).unwrap()];
    let mut bench = Bench::with_interval(tables, RECORD_BYTES_MAX, interval);
    let ids: Vec<RequestId> =
        (0..SLOTS as u16).map(|slot| bench.open(0, slot, &["\n\n", "stop"], &[])).collect();
    let steps: Vec<Vec<u8>> = "sto é終 👩🏽 st\n!"
        .bytes()
        .cycle()
        .take(512)
        .enumerate()
        .map(|(sequence, byte)| {
            let events: Vec<_> = ids.iter().map(|&id| event(id, byte.into(), sequence as u32, 0)).collect();
            let mut payload = Vec::new();
            encode_step(&mut payload, sequence as u64, 1, &events, &[]);
            payload
        })
        .collect();
    let (warm_up, steady) = steps.split_at(64);
    let mut run = |payloads: &[Vec<u8>]| {
        let mut bytes = 0;
        for payload in payloads {
            bench.detokenizer.step(kind::STEP, payload, 1).unwrap();
            bytes += bench.detokenizer.records(0).map(<[u8]>::len).sum::<usize>();
            bench.detokenizer.clear();
        }
        let each = if interval == 1 { 28 } else { 5 };
        assert!(bytes >= payloads.len() * SLOTS * each);
    };
    run(warm_up);
    let counted = allocation_counter::measure(|| run(steady));
    assert_eq!(counted.count_total, 0, "over {} tokens, {interval} at a time", steady.len() * SLOTS);
}

/// Scores of a prompt's tokens are deltas without text, cut into records like all others.
#[test]
fn scores_of_a_prompt_get_their_texts() {
    let mut bench = Bench::new(1, 100);
    let (id, gone) = (bench.open(0, 0, &[], &[]), bench.open(0, 3, &[], &[]));
    bench.tables[0].slot(3).unwrap().close(gone.generation);
    bench.detokenizer.sweep();
    let entry = |token, logprob| LogprobEntry { token, logprob };
    let header = PromptHeader { id, first_index: 0, token_count: 1, entry_count: 1, flags: PROMPT_FIRST };
    let mut payload = Vec::new();
    encode_prompt(&mut payload, &header, &[0], &[entry(104, 0.0)]);
    bench.detokenizer.step(kind::PROMPT, &payload, 1).unwrap();
    let header = PromptHeader { first_index: 1, token_count: 2, entry_count: 2, flags: 0, ..header };
    let entries = [entry(0xC3, -1.5), entry(97, -0.5), entry(EOS, -2.5), entry(98, -0.25)];
    encode_prompt(&mut payload, &header, &[4, 2], &entries);
    bench.detokenizer.step(kind::PROMPT, &payload, 1).unwrap();
    // None may be missing or come twice: the edge is corrupt then.
    for first_index in [0, 2, 4, u32::MAX - 2] {
        encode_prompt(&mut payload, &PromptHeader { first_index, ..header }, &[4, 2], &entries);
        assert!(bench.detokenizer.step(kind::PROMPT, &payload, 1).is_err(), "{first_index}");
    }
    // One of a request that is not here is dropped.
    encode_prompt(&mut payload, &PromptHeader { id: gone, ..header }, &[4, 2], &entries);
    bench.detokenizer.step(kind::PROMPT, &payload, 1).unwrap();

    let records: Vec<Vec<u8>> = bench.detokenizer.records(0).map(<[u8]>::to_vec).collect();
    assert_eq!(records.len(), 3, "each has its own with records this small");
    let mut all = Vec::new();
    for (index, delta) in (0..).zip(records.iter().flat_map(|record| deltas(record))) {
        let delta = delta.unwrap();
        assert_eq!((delta.header.id, delta.header.first_sequence, delta.text), (id, index, ""));
        assert_ne!(delta.header.flags & DELTA_PROMPT, 0);
        all.extend(decode_prompt_scores(delta.score_bytes).unwrap());
    }
    let score =
        |token, logprob, bytes: &[u8]| Score { token, logprob, bytes: bytes.to_vec(), special: false };
    let end = Score { special: true, ..score(EOS, -2.5, b"<|endoftext|>") };
    let of = |rank, drawn, alternatives| PromptScore { rank, score: TokenScore { drawn, alternatives } };
    assert_eq!(
        all,
        [
            of(None, score(104, 0.0, b"h"), vec![]),
            of(Some(4), score(0xC3, -1.5, b"\xc3"), vec![score(97, -0.5, b"a")]),
            of(Some(2), end, vec![score(98, -0.25, b"b")]),
        ]
    );
    assert_eq!(bench.detokenizer.counts().stale, 1);
    assert!(bench.detokenizer.step(kind::PROMPT, &payload[..payload.len() - 1], 1).is_err());
}

/// Marks are asked for, the interval, the stop string, the whole text, and where its marks are.
type Case<'a> = (bool, u32, Option<&'a str>, &'a str, &'a [(usize, String)]);

/// A mark is alone in its delta, with what was held back before it, whatever leaves together; without being asked for
/// it is text as any other.
#[test]
fn marks_of_reasoning_leave_by_themselves() {
    const OPEN: u32 = EOS + 1;
    const CLOSE: u32 = EOS + 2;
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    let tokens = [vec![OPEN], bytes("a\n\u{e9}"), vec![0xC3], vec![CLOSE], bytes("</think>b")].concat();
    let shown = "<think>a\né\u{FFFD}</think></think>b";
    let marks = [(0, "<think>".to_owned()), (14, "</think>".to_owned())];
    let cases: [Case<'_>; 9] = [
        (true, 1, None, shown, &marks[..]),
        (true, 3, None, shown, &marks[..]),
        (true, 100, None, shown, &marks[..]),
        (true, 1, Some("\n\n"), shown, &marks[..]),
        (true, 7, Some("</think>b"), "<think>a\né\u{FFFD}</think>", &marks[..]),
        (true, 1, Some("</think>"), "<think>a\né\u{FFFD}", &marks[..1]),
        (true, 1, Some("é\u{FFFD}"), "<think>a\n", &marks[..1]),
        (false, 1, None, shown, &[]),
        (false, 1, Some("\u{FFFD}</think>"), "<think>a\né", &[]),
    ];
    for (asked, interval, stop, text, marks) in cases {
        for resumed in 0..tokens.len() {
            let tables = vec![SlotTable::create(1, 1, SLOTS).unwrap()];
            let mut bench = Bench::with_codec(marked_codec(), tables, RECORD_BYTES_MAX, interval);
            bench.form.marks = asked;
            let stop: Vec<&str> = stop.into_iter().collect();
            let id = bench.open(0, 0, &stop, &tokens[..resumed]);
            for (at, token) in (0..).zip(&tokens).skip(resumed) {
                let last = if at as usize + 1 == tokens.len() { EVENT_LAST } else { 0 };
                if !bench.received[&id].last {
                    bench.step(&[event(id, *token, at, last)]);
                }
            }
            let received = &bench.received[&id];
            if resumed == 0 {
                assert_eq!(
                    (received.text.as_str(), &received.marks[..]),
                    (text, marks),
                    "{interval} {stop:?}"
                );
            } else {
                assert!(text.ends_with(&received.text), "{resumed}: {received:?}");
            }
            assert_eq!(received.stopped, stop.first().is_some_and(|stop| *stop != "\n\n"), "{resumed}");
        }
    }
}
