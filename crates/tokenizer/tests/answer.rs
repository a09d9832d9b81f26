//! Records in, records out: every form of prompt through every check.

#![allow(clippy::unwrap_used)] // a failed unwrap here is a failed test

use pinion_protocol::engine_inbox::Admit;
use pinion_protocol::frontend_inbox::{Decoded, Reject};
use pinion_protocol::tokenizer_inbox::{Decode, Encode, Prompt, Render, Submit, TokenizerRecord, Truncation};
use pinion_protocol::{Claim, FaultCode, Grammar, GrammarField, GrammarKind, Reasoning, RequestId, Sampling};
use pinion_text::{ChatRenderer, TextCodec, byte_tokenizer_json, byte_tokenizer_json_with};
use pinion_tokenizer::{Answer, Limits, Tokenizer};
use std::path::Path;

const CLAIM: Claim = Claim { tenant: 5, priority: -1, weight: 2 };
const ID: RequestId = RequestId { frontend: 0, slot: 3, generation: 9 };
/// 2024-08-01, noon.
const NOW: i64 = 1_722_513_600;
/// The same, as a submission has it.
const ASKED: u64 = NOW as u64;
const LIMITS: Limits =
    Limits { max_model_len: 64, vocab_size: 257, max_new_tokens: None, answer_bytes_max: 512 };

/// One token per byte, so token counts can be read off the text.
fn tokenizer() -> Tokenizer {
    tokenizer_with(ChatRenderer::plain(), LIMITS)
}

fn tokenizer_with(chat: ChatRenderer, limits: Limits) -> Tokenizer {
    let codec = TextCodec::parse(byte_tokenizer_json().as_bytes(), Path::new("tokenizer.json")).unwrap();
    Tokenizer::new(codec, chat, limits)
}

fn text(text: &str) -> Prompt {
    Prompt::Text(text.to_owned())
}

fn messages(json: &str) -> Prompt {
    Prompt::Chat(format!("{{\"messages\": {json}}}"))
}

fn submit(prompt: Prompt, max_tokens: Option<u32>, resume: &[u32]) -> TokenizerRecord {
    let sampling = Sampling { seed: 7, top_k: Some(5), max_tokens, ..Sampling::default() };
    TokenizerRecord::Submit(Submit {
        id: ID,
        claim: CLAIM,
        sampling,
        prompt,
        truncation: Truncation::Never,
        asked_unix_s: ASKED,
        resume: resume.to_vec(),
    })
}

fn admitted(record: TokenizerRecord) -> Admit {
    match tokenizer().answer(record, NOW) {
        Answer::Admit(admit) => admit,
        other => panic!("not admitted: {other:?}"),
    }
}

fn rejected(record: TokenizerRecord) -> Reject {
    match tokenizer().answer(record, NOW) {
        Answer::Reject(reject) => reject,
        other => panic!("not rejected: {other:?}"),
    }
}

fn bytes_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn what_fits_is_admitted_with_its_room() {
    let chat = r#"[{"role": "user", "content": "é"}]"#;
    let cases: [(Prompt, Option<u32>, Vec<u32>, u32); 7] = [
        (text("hé"), Some(5), bytes_of("hé"), 5),
        (text("hé"), None, bytes_of("hé"), 61),
        (Prompt::Ids(vec![256, 0]), None, vec![256, 0], 62),
        (text(&"x".repeat(63)), None, bytes_of(&"x".repeat(63)), 1),
        (Prompt::Ids(vec![1; 60]), Some(4), vec![1; 60], 4),
        // Nothing to generate leaves the whole context to the prompt.
        (Prompt::Ids(vec![1; 64]), Some(0), vec![1; 64], 0),
        (messages(chat), Some(1), bytes_of("User: é\nAssistant:"), 1),
    ];
    for (prompt, max_tokens, ids, room) in cases {
        let admit = admitted(submit(prompt, max_tokens, &[]));
        assert_eq!((admit.prompt_tokens as usize, &admit.ids), (ids.len(), &ids));
        let sampling = Sampling { seed: 7, top_k: Some(5), max_tokens: Some(room), ..Sampling::default() };
        assert_eq!((admit.id, admit.sampling), (ID, sampling));
    }
}

/// The prompt's last tokens are used, also where all of them would not fit.
#[test]
fn a_prompt_is_truncated_from_its_beginning_or_its_end() {
    let with = |prompt: Prompt, truncation, max_tokens| {
        let sampling = Sampling { max_tokens, ..Sampling::default() };
        let (asked_unix_s, resume) = (ASKED, Vec::new());
        let submit = Submit { id: ID, claim: CLAIM, sampling, prompt, truncation, asked_unix_s, resume };
        TokenizerRecord::Submit(submit)
    };
    let long = "abcdefgh".repeat(16);
    let tail = |count: usize| bytes_of(&long)[long.len() - count..].to_vec();
    for (truncation, max_tokens, count) in [
        (Truncation::Last(3), Some(4), 3),
        (Truncation::Last(1), None, 1),
        (Truncation::Last(63), None, 63),
        (Truncation::Fit, Some(10), 54),
        (Truncation::Fit, None, 63),
    ] {
        let admit = admitted(with(text(&long[..63]), truncation, max_tokens));
        let short = bytes_of(&long[..63]);
        assert_eq!(admit.ids, short[short.len().saturating_sub(count)..], "{truncation:?}");
        let admit = admitted(with(Prompt::Ids(bytes_of(&long)), truncation, max_tokens));
        assert_eq!((admit.ids, admit.prompt_tokens as usize), (tail(count), count), "{truncation:?}");
    }
    for (truncation, count) in
        [(Truncation::First(3), 3), (Truncation::FitFirst, 64), (Truncation::First(64), 64)]
    {
        let admit = admitted(with(Prompt::Ids(bytes_of(&long)), truncation, Some(0)));
        assert_eq!(admit.ids, bytes_of(&long)[..count], "{truncation:?}");
        let admit = admitted(with(text(&long[..63]), truncation, Some(0)));
        assert_eq!(admit.ids, bytes_of(&long)[..count.min(63)], "{truncation:?}");
    }
    let whole = admitted(with(text("ab"), Truncation::Last(9), Some(4)));
    assert_eq!(whole.ids, bytes_of("ab"));
    assert_eq!(
        rejected(with(Prompt::Ids(vec![1; 70]), Truncation::Last(64), Some(4))).fault.code,
        FaultCode::ContextLengthExceeded
    );
}

#[test]
fn min_tokens_must_fit_the_room() {
    let with = |min_tokens, max_tokens| {
        let sampling = Sampling { max_tokens, min_tokens, ..Sampling::default() };
        TokenizerRecord::Submit(Submit {
            id: ID,
            claim: CLAIM,
            sampling,
            prompt: text("ab"),
            truncation: Truncation::Never,
            asked_unix_s: ASKED,
            resume: Vec::new(),
        })
    };
    assert_eq!(admitted(with(62, None)).sampling.min_tokens, 62);
    assert_eq!(rejected(with(63, None)).fault.param.as_deref(), Some("min_tokens"));
}

#[test]
fn resumed_ids_follow_the_prompt() {
    let admit = admitted(submit(text("ab"), Some(4), &[7, 8, 9]));
    assert_eq!((admit.prompt_tokens, admit.ids), (2, vec![97, 98, 7, 8, 9]));
    assert_eq!(admit.sampling.max_tokens, Some(4));
    assert_eq!(rejected(submit(text("ab"), Some(3), &[7, 8, 9])).fault.code, FaultCode::Internal);
    assert_eq!(rejected(submit(text("ab"), Some(9), &[257])).fault.code, FaultCode::InvalidValue);
}

/// It was allowed to begin; a tokenizer that cannot compile in time now does not end it.
#[test]
fn the_grammar_of_a_text_that_goes_on_is_not_judged_again() {
    let with_grammar = |resume: &[u32]| {
        let grammar =
            Grammar { kind: GrammarKind::Regex, field: GrammarField::GuidedRegex, text: "a+".into() };
        let sampling = Sampling { grammar: Some(grammar), max_tokens: Some(4), ..Sampling::default() };
        TokenizerRecord::Submit(Submit {
            id: ID,
            claim: CLAIM,
            sampling,
            prompt: text("ab"),
            truncation: Truncation::Never,
            asked_unix_s: ASKED,
            resume: resume.to_vec(),
        })
    };
    assert_eq!(rejected(with_grammar(&[])).fault.code, FaultCode::InvalidValue, "this one knows no grammars");
    assert_eq!(admitted(with_grammar(&[97])).ids, [97, 98, 97]);
}

#[test]
fn what_does_not_fit_is_rejected_with_its_field_and_numbers() {
    use FaultCode::{ContextLengthExceeded, InvalidValue};
    let long_chat = format!(r#"[{{"role": "user", "content": "{}"}}]"#, "y".repeat(50));
    let bad_chat = r#"[{"role": "user", "content": "a"}, {"role": "user", "content": 1}]"#;
    let huge = "z".repeat(64 * 1024);
    let cases: [(Prompt, Option<u32>, FaultCode, &str, &str); 13] = [
        (text(""), None, InvalidValue, "prompt", "prompt must not be empty"),
        (Prompt::Ids(vec![]), Some(1), InvalidValue, "prompt", "prompt must not be empty"),
        (
            Prompt::Ids(vec![1, 257]),
            None,
            InvalidValue,
            "prompt",
            "token id 257 at position 1 is not below 257",
        ),
        (Prompt::Ids(vec![u32::MAX]), None, InvalidValue, "prompt", "4294967295"),
        (Prompt::Ids(vec![1; 65]), Some(0), ContextLengthExceeded, "prompt", "(65 in the prompt, 0 in"),
        (
            text(&"x".repeat(64)),
            None,
            ContextLengthExceeded,
            "prompt",
            "requested 65 tokens (64 in the prompt, 1 in",
        ),
        (Prompt::Ids(vec![1; 64]), Some(1), ContextLengthExceeded, "prompt", "(64 in the prompt, 1 in"),
        (
            Prompt::Ids(vec![1; 60]),
            Some(5),
            ContextLengthExceeded,
            "prompt",
            "requested 65 tokens (60 in the prompt, 5",
        ),
        (text("a"), Some(u32::MAX), ContextLengthExceeded, "prompt", "requested 4294967296 tokens"),
        (messages(&long_chat), None, ContextLengthExceeded, "messages", "(67 in the messages, 1 in"),
        (
            text(&huge),
            None,
            ContextLengthExceeded,
            "prompt",
            "maximum context length is 64 tokens. However, your prompt",
        ),
        (messages(bad_chat), None, InvalidValue, "messages[1].content", "must be a string"),
        (messages("nonsense"), None, InvalidValue, "messages", "not valid JSON"),
    ];
    for (prompt, max_tokens, code, param, words) in cases {
        let Reject { id, fault } = rejected(submit(prompt, max_tokens, &[]));
        assert_eq!((id, fault.code, fault.param.as_deref()), (ID, code, Some(param)), "{fault}");
        assert!(fault.message.contains(words), "{fault}");
    }
}

/// A renderer for a folder with this template.
fn chat(name: &str, template: &str) -> ChatRenderer {
    let folder = std::env::temp_dir().join(format!("pinion-tokenizer-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    let config = r#"{"bos_token": "<|endoftext|>"}"#;
    std::fs::write(folder.join("tokenizer_config.json"), config).unwrap();
    let chat = ChatRenderer::load(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    chat.unwrap()
}

/// A chat that goes on after a death is rendered again: past midnight it had another prompt.
#[test]
fn a_submission_is_rendered_with_the_time_at_which_it_was_asked_for() {
    let template = "{% for m in messages %}{{ strftime_now('%d %b %Y') }}: {{ m.content }}{% endfor %}";
    let tokenizer = tokenizer_with(chat("asked", template), LIMITS);
    let prompt = || messages(r#"[{"role": "user", "content": "a"}]"#);
    for (now, resume) in [(NOW, &[][..]), (NOW + 86_400, &[7])] {
        let Answer::Admit(admit) = tokenizer.answer(submit(prompt(), Some(4), resume), now) else {
            panic!("not admitted");
        };
        assert_eq!(admit.ids, [&bytes_of("01 Aug 2024: a"), resume].concat());
    }
    let encode = TokenizerRecord::Encode(Encode { id: ID, prompt: prompt(), truncation: Truncation::Never });
    let Answer::Encoded(encoded) = tokenizer.answer(encode, NOW + 86_400) else { panic!("not encoded") };
    assert_eq!(encoded.ids, bytes_of("02 Aug 2024: a"));
}

#[test]
fn the_models_template_writes_the_prompt_and_its_one_beginning() {
    let template = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %}<{{ strftime_now('%Y') }}>{% endif %}";
    let chat = chat("begins", template);
    // This tokenizer puts a beginning before every text that it is asked to add special tokens to.
    let beginning = r#"{"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [], "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}}}"#;
    let json =
        byte_tokenizer_json().replace("\"post_processor\":null", &format!("\"post_processor\":{beginning}"));
    assert!(json.contains("TemplateProcessing"));
    let codec = TextCodec::parse(json.as_bytes(), Path::new("tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::new(codec, chat, LIMITS);
    let record = submit(messages(r#"[{"role": "user", "content": "hé"}]"#), Some(1), &[]);
    let Answer::Admit(admit) = tokenizer.answer(record, NOW) else { panic!("not admitted") };
    let expected = [vec![256], bytes_of("<user>hé<2024>")].concat();
    assert_eq!(admit.ids, expected);
    // Asked for once more, it is not written twice; a text gets it unless it has it or the client wants none.
    let chat = r#"{"messages": [{"role": "user", "content": "hé"}], "add_special_tokens": true}"#;
    for (prompt, expected) in [
        (Prompt::Chat(chat.to_owned()), expected),
        (text("a"), vec![256, 97]),
        (text(""), vec![256]),
        (text("<|endoftext|>a"), vec![256, 97]),
        (Prompt::Bare("a".to_owned()), vec![97]),
        (Prompt::Ids(vec![97]), vec![97]),
    ] {
        let shown = format!("{prompt:?}");
        let encode =
            TokenizerRecord::Encode(Encode { id: ID, prompt: prompt.clone(), truncation: Truncation::Never });
        let Answer::Encoded(encoded) = tokenizer.answer(encode, NOW) else { panic!("not encoded: {shown}") };
        let Answer::Admit(admit) = tokenizer.answer(submit(prompt, Some(1), &[]), NOW) else {
            panic!("not admitted: {shown}")
        };
        assert_eq!((&encoded.ids, &admit.ids), (&expected, &expected), "{shown}");
    }
}

#[test]
fn a_template_that_fails_ends_its_request_and_no_other() {
    let raises = "{% if messages[0].role != 'user' %}{{ raise_exception('the user begins') }}{% endif %}\
                  {% if messages[0].content == 'spin' %}{% for a in range(99999) %}{% for b in range(99999) %}\
                  {% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}";
    let tokenizer = tokenizer_with(chat("fails", raises), LIMITS);
    let answer = |role: &str, content: &str| {
        let json = format!(r#"[{{"role": "{role}", "content": "{content}"}}]"#);
        tokenizer.answer(submit(messages(&json), Some(1), &[]), NOW)
    };
    let render = |content: &str| {
        let chat = format!(r#"{{"messages": [{{"role": "user", "content": "{content}"}}]}}"#);
        tokenizer.answer(TokenizerRecord::Render(Render { id: ID, chat }), NOW)
    };
    assert_eq!(render("as it is"), Answer::Decoded(Decoded { id: ID, text: "as it is".to_owned() }));
    assert!(matches!(render("spin"), Answer::Reject(_)));
    for (role, content, words) in [("assistant", "a", "the user begins"), ("user", "spin", "takes more than")]
    {
        let Answer::Reject(Reject { id, fault }) = answer(role, content) else { panic!("not rejected") };
        let expected = (ID, FaultCode::InvalidValue, Some("messages"));
        assert_eq!((id, fault.code, fault.param.as_deref()), expected);
        assert!(fault.message.contains(words), "{fault}");
        let Answer::Admit(admit) = answer("user", "ok") else { panic!("not admitted") };
        assert_eq!(admit.ids, bytes_of("ok"));
    }
}

#[test]
fn an_answer_that_does_not_fit_its_ring_is_a_fault() {
    // Room for the request's id and 32 bytes: 8 token ids, or 32 bytes of text.
    let limits = Limits { answer_bytes_max: size_of::<RequestId>() + 32, ..LIMITS };
    let tokenizer = tokenizer_with(ChatRenderer::plain(), limits);
    let encode = |bytes| {
        let prompt = text(&"x".repeat(bytes));
        tokenizer
            .answer(TokenizerRecord::Encode(Encode { id: ID, prompt, truncation: Truncation::Never }), NOW)
    };
    // A byte that is no character shows as three.
    let decode =
        |ids| tokenizer.answer(TokenizerRecord::Decode(Decode { id: ID, ids: vec![0xFF; ids] }), NOW);
    let mut payload = Vec::new();
    let Answer::Encoded(encoded) = encode(8) else { panic!("8 ids fit") };
    encoded.encode(&mut payload);
    assert_eq!(payload.len(), limits.answer_bytes_max, "the check and the record agree");
    let Answer::Decoded(decoded) = decode(10) else { panic!("30 bytes fit") };
    decoded.encode(&mut payload);
    assert_eq!(payload.len(), limits.answer_bytes_max - 2, "the check and the record agree");
    for (answer, param, bytes) in [(encode(9), "prompt", 4), (decode(11), "tokens", 1)] {
        let Answer::Reject(Reject { id, fault }) = answer else { panic!("does not fit: {answer:?}") };
        assert_eq!((id, fault.code, fault.param.as_deref()), (ID, FaultCode::InvalidValue, Some(param)));
        let (has, fits) = (limits.answer_bytes_max + bytes, limits.answer_bytes_max);
        assert_eq!(fault.message, format!("the answer has {has} bytes, but at most {fits} fit"));
    }
}

#[test]
fn encode_and_decode_answer_their_frontend() {
    let encode = |prompt| {
        tokenizer()
            .answer(TokenizerRecord::Encode(Encode { id: ID, prompt, truncation: Truncation::Never }), NOW)
    };
    let decode = |ids| tokenizer().answer(TokenizerRecord::Decode(Decode { id: ID, ids }), NOW);
    let ids_of = |answer| match answer {
        Answer::Encoded(encoded) => encoded.ids,
        other => panic!("not encoded: {other:?}"),
    };
    assert_eq!(ids_of(encode(text("hé"))), bytes_of("hé"));
    assert_eq!(ids_of(encode(text(""))), Vec::<u32>::new());
    assert_eq!(
        ids_of(encode(messages(r#"[{"role": "user", "content": "a"}]"#))),
        bytes_of("User: a\nAssistant:")
    );
    let Answer::Decoded(decoded) = decode(vec![104, 0xC3, 0xA9, 256, 0xC3]) else { panic!("not decoded") };
    assert_eq!(decoded.text, "hé<|endoftext|>\u{FFFD}");
    let refusals = [
        (encode(text(&"x".repeat(200))), "prompt"), // 800 bytes of ids, over the answer's 512
        (encode(text(&"z".repeat(64 * 1024))), "prompt"),
        (decode(vec![257]), "tokens"),
        (decode(vec![0; 65]), "tokens"),
    ];
    for (answer, param) in refusals {
        let Answer::Reject(reject) = answer else { panic!("not rejected: {answer:?}") };
        assert_eq!(reject.fault.param.as_deref(), Some(param), "{}", reject.fault);
    }
}

#[test]
fn an_answer_of_no_given_length_has_the_model_s_if_there_is_room() {
    for (max_new_tokens, asked, expected) in
        [(Some(10), None, 10), (Some(10), Some(20), 20), (Some(100), None, 61), (None, None, 61)]
    {
        let tokenizer = tokenizer_with(ChatRenderer::plain(), Limits { max_new_tokens, ..LIMITS });
        let Answer::Admit(admit) = tokenizer.answer(submit(text("abc"), asked, &[]), NOW) else {
            panic!("not admitted")
        };
        assert_eq!(admit.sampling.max_tokens, Some(expected));
    }
}

#[test]
fn the_engine_and_the_frontend_are_told_how_an_answer_begins() {
    let opens = chat("opens", "{{ messages[0].content }}<think>\n");
    let json = byte_tokenizer_json_with(&["<think>", "</think>"]);
    let codec = TextCodec::parse(json.as_bytes(), Path::new("tokenizer.json")).unwrap();
    let limits = Limits { vocab_size: 259, ..LIMITS };
    let marked = Tokenizer::new(codec, opens, limits);
    let plain = tokenizer();
    for (tokenizer, prompt, wanted, expected) in [
        (&marked, messages(r#"[{"role": "user", "content": "a"}]"#), Reasoning::Possible, Reasoning::Begun),
        (&marked, messages(r#"[{"role": "user", "content": "a"}]"#), Reasoning::None, Reasoning::None),
        (&marked, text("a<think>"), Reasoning::Possible, Reasoning::None),
        (&plain, messages(r#"[{"role": "user", "content": "a"}]"#), Reasoning::Possible, Reasoning::Possible),
    ] {
        let sampling = Sampling { reasoning: wanted, ..Sampling::default() };
        let record = TokenizerRecord::Submit(Submit {
            id: ID,
            claim: CLAIM,
            sampling,
            prompt,
            truncation: Truncation::Never,
            asked_unix_s: ASKED,
            resume: Vec::new(),
        });
        let Answer::Admit(admit) = tokenizer.answer(record, NOW) else { panic!("not admitted") };
        assert_eq!(admit.sampling.reasoning, expected);
    }
    assert!(marked.found(Reasoning::None).marks_are_tokens && !plain.found(Reasoning::None).marks_are_tokens);
}
