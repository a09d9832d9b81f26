//! Grammars that are small to write and large to compile or to follow: each is refused, or cheap for as long as it is
//! followed. What holds is the refusal; what it costs is measured by `cargo run --release --example bombs`.

#![allow(clippy::unwrap_used)] // a failed unwrap here is a failed test

#[path = "../examples/bombs/list.rs"]
mod list;
mod words;

use list::bombs;
use pinion_grammar::{Checker, Next};
use pinion_protocol::{Fault, FaultCode, GrammarKind};
use pinion_random::Random;
use words::{draw, grammar, vocabulary, words};

#[test]
fn a_bomb_is_refused_by_name_or_followed_at_no_great_cost() {
    let mut checker = Checker::start(Ok(words()));
    let mut refused = 0;
    for bomb in bombs() {
        let grammar = grammar(bomb.kind, &bomb.text);
        match checker.check(&grammar) {
            Ok(()) => assert!(!bomb.refused, "{} was taken", bomb.name),
            Err(fault) if fault.code == FaultCode::TooManyRequests => {}
            Err(fault) => {
                assert_eq!(fault.code, FaultCode::InvalidValue, "{}", bomb.name);
                assert_eq!(fault.param.as_deref(), Some("guided_grammar"), "{}", bomb.name);
                assert!(fault.message.len() < 500, "{}: {}", bomb.name, fault.message);
                refused += 1;
            }
        }
    }
    assert!(refused > 20, "{refused} bombs were refused");
}

#[test]
fn a_grammar_that_ordinary_people_write_passes() {
    let mut checker = Checker::start(Ok(words()));
    let properties = |count: usize| {
        let members = (0..count).map(|n| (format!("property_{n}"), serde_json::json!({"type": "string"})));
        serde_json::json!({"type": "object", "properties": members.collect::<serde_json::Map<_, _>>()})
            .to_string()
    };
    let choices: Vec<String> = (0..1000).map(|n| format!("choice number {n}")).collect();
    for (kind, text) in [
        (GrammarKind::JsonSchema, properties(200)),
        (GrammarKind::Choice, serde_json::json!(choices).to_string()),
        (GrammarKind::Regex, "[a-zA-Z0-9._%+-]{1,64}@[a-zA-Z0-9.-]{1,200}\\.[a-zA-Z]{2,10}".to_owned()),
        (GrammarKind::JsonObject, String::new()),
    ] {
        // That the machine is busy says nothing of the grammar.
        let busy = |verdict: &Result<(), Fault>| {
            verdict.as_ref().is_err_and(|fault| fault.code == FaultCode::TooManyRequests)
        };
        let mut verdicts = (0..20).map(|_| checker.check(&grammar(kind, &text)));
        let verdict = verdicts.find(|verdict| !busy(verdict));
        assert_eq!(verdict, Some(Ok(())), "{}", &text[..text.len().min(80)]);
    }
}

/// A grammar that passed may still be too complex further on: that is an error value of its own matcher.
#[test]
fn a_text_that_cannot_go_on_fails_alone() {
    // As much stack as the threads that compile have.
    let test = std::thread::Builder::new().stack_size(64 << 20).spawn(follow_all).unwrap();
    test.join().unwrap();
}

/// One that does go off: what may not follow, follows. Its matcher has nothing more to say, and others go on.
#[test]
fn an_error_stays_with_its_matcher() {
    let vocabulary = vocabulary();
    let compiled = vocabulary.compile(&grammar(GrammarKind::Regex, "[ab]{3}")).unwrap();
    let (mut broken, mut whole, mut bits) = (compiled.fork(), compiled, Vec::new());
    assert!(broken.advance(99).is_err());
    assert!(broken.next(&mut bits).is_err() && broken.advance(97).is_err());
    assert_eq!((whole.advance(97), whole.next(&mut bits)), (Ok(()), Ok(Next::Tokens)));
}

fn follow_all() {
    let (vocabulary, words) = (vocabulary(), words());
    let mut checker = Checker::start(Ok(words.clone()));
    for bomb in bombs().into_iter().filter(|bomb| !bomb.refused) {
        let grammar = grammar(bomb.kind, &bomb.text);
        if checker.check(&grammar).is_err() {
            continue;
        }
        let Ok(mut matcher) = vocabulary.compile(&grammar) else { panic!("{} passed before", bomb.name) };
        let (mut bits, mut random) = (Vec::new(), Random::new(1));
        for _ in 0..60 {
            match matcher.next(&mut bits) {
                Ok(Next::Tokens) => {}
                Ok(Next::Complete) | Err(_) => break,
            }
            let all: Vec<u32> =
                (0..words.bytes.len() as u32).filter(|token| words::allowed(&bits, *token)).collect();
            if matcher.advance(all[random.below(all.len())]).is_err() {
                break;
            }
        }
    }
    let mut bystander = vocabulary.compile(&grammar(GrammarKind::Regex, "[ab]{3}")).unwrap();
    let (text, over) = draw(&mut bystander, &words, &mut Random::new(2), 9, |_, _| {});
    assert!(over && text.len() == 3);
}

#[test]
fn what_is_no_grammar_is_refused_with_the_reason() {
    let mut checker = Checker::start(Ok(words()));
    for (kind, text) in [
        (GrammarKind::Regex, "("),
        (GrammarKind::Regex, "[z-a]"),
        (GrammarKind::Regex, "(?=a)b"),
        (GrammarKind::JsonSchema, "{\"type\": \"strin\"}"),
        (GrammarKind::JsonSchema, "{\"$ref\": \"#/$defs/none\"}"),
        (GrammarKind::JsonSchema, "{\"$ref\": \"http://example.com/schema\"}"),
        (GrammarKind::JsonSchema, "{\"type\": \"array\", \"uniqueItems\": true}"),
        (GrammarKind::JsonSchema, "not JSON"),
        (GrammarKind::JsonSchema, "{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 4}"),
        (GrammarKind::Choice, "{}"),
        (GrammarKind::Lark, "begin: \"a\""),
        (GrammarKind::Lark, "start: missing"),
        (GrammarKind::Lark, "start: \"a"),
        (GrammarKind::Lark, "start: start"),
    ] {
        let fault = checker.check(&grammar(kind, text)).expect_err(text);
        assert_eq!((fault.code, fault.param.as_deref()), (FaultCode::InvalidValue, Some("guided_grammar")));
        assert!(fault.message.len() > "guided_grammar: ".len() + 5, "{text}: {}", fault.message);
        assert!(!fault.message.contains('<') || !fault.message.contains("state>"), "{}", fault.message);
    }
    let mut none = Checker::start(Err("is not supported here".to_owned()));
    let fault = none.check(&grammar(GrammarKind::JsonObject, "")).expect_err("there is no vocabulary");
    assert_eq!(fault.message, "guided_grammar: is not supported here");
}
