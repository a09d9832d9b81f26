//! Reasoning told from answers, however the text is cut.

#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use pinion_text::reasoning::{CLOSE, Marks, OPEN, Piece, ReasoningParser};
use proptest::prelude::*;

/// What came: text, or a mark that was a token.
#[derive(Clone, Debug)]
enum Came {
    Text(String),
    Mark(&'static str),
}

fn text(text: &str) -> Came {
    Came::Text(text.to_owned())
}

/// The reasoning and the answer of what came.
fn parsed(mut parser: ReasoningParser, came: &[Came]) -> (String, String) {
    let (mut thoughts, mut answer) = (String::new(), String::new());
    let mut take = |piece: Piece<'_>| match piece {
        Piece::Thought(text) => {
            assert!(!text.is_empty() && answer.is_empty(), "reasoning comes first: {came:?}");
            thoughts.push_str(text);
        }
        Piece::Text(text) => {
            assert!(!text.is_empty());
            answer.push_str(text);
        }
    };
    for came in came {
        match came {
            Came::Text(text) => parser.push(text, &mut take),
            Came::Mark(mark) => parser.push_mark(mark, &mut take),
        }
    }
    parser.finish(&mut take);
    (thoughts, answer)
}

/// The same with every text cut at each place, and taken character by character.
fn check(parser: impl Fn() -> ReasoningParser, came: &[Came], thoughts: &str, answer: &str) {
    let expected = (thoughts.to_owned(), answer.to_owned());
    assert_eq!(parsed(parser(), came), expected, "{came:?}");
    let characters: Vec<Came> = came
        .iter()
        .flat_map(|came| match came {
            Came::Text(text) => text.chars().map(|c| Came::Text(c.to_string())).collect(),
            Came::Mark(mark) => vec![Came::Mark(mark)],
        })
        .collect();
    assert_eq!(parsed(parser(), &characters), expected, "{characters:?}");
    for (at, one) in came.iter().enumerate() {
        let Came::Text(text) = one else { continue };
        for (cut, _) in text.char_indices() {
            let halves = [Came::Text(text[..cut].to_owned()), Came::Text(text[cut..].to_owned())];
            let cut = [&came[..at], &halves, &came[at + 1..]].concat();
            assert_eq!(parsed(parser(), &cut), expected, "{cut:?}");
        }
    }
}

#[test]
fn marks_in_the_text() {
    for (begun, written, thoughts, answer) in [
        (false, "<think>\na\n\nb\n</think>\n\nc\nd\n", "a\n\nb", "c\nd\n"),
        (false, "\n <think>a</think>b", "a", "b"),
        (false, "no <think>a</think>", "", "no <think>a</think>"),
        (false, "<thin", "", "<thin"),
        (false, "<thing>", "", "<thing>"),
        (false, " \n", "", " \n"),
        (false, "", "", ""),
        (true, "a</think>b", "a", "b"),
        (true, "\n\na</</think>b", "a</", "b"),
        (true, "a</think></think>\nb</think>", "a", "b</think>"),
        (true, "a</think></thi", "a", "</thi"),
        (true, "a\n\n", "a", ""),
        (true, "a</thin", "a</thin", ""),
        (true, "</think>\n\nb", "", "b"),
        (true, "é終</think>終", "é終", "終"),
        (false, "<think></think>", "", ""),
        (true, "a<tool_call>{}", "a", "<tool_call>{}"),
        (true, "a\n<tool_cal</think>b", "a\n<tool_cal", "b"),
    ] {
        let parser = || ReasoningParser::new(begun, Marks::Text, Some("<tool_call>"));
        check(parser, &[text(written)], thoughts, answer);
    }
}

#[test]
fn marks_that_are_tokens() {
    use Came::Mark;
    let cases: [(bool, &[Came], &str, &str); 9] = [
        (
            false,
            &[Mark(OPEN), text("\nI write </think>\n"), Mark(CLOSE), text("\n\nb")],
            "I write </think>",
            "b",
        ),
        (false, &[text("\n"), Mark(OPEN), text("a"), Mark(CLOSE), Mark(CLOSE), text("b")], "a", "b"),
        (false, &[text("<think>a</think>b")], "", "<think>a</think>b"),
        (false, &[Mark(CLOSE), text("\n\nb"), Mark(CLOSE)], "", "b</think>"),
        (true, &[Mark(OPEN), text("a"), Mark(OPEN), Mark(CLOSE), text("b")], "a<think>", "b"),
        (true, &[text("a<tool_"), Mark(CLOSE), text("b")], "a<tool_", "b"),
        (true, &[text("a\n<tool_call>b"), Mark(CLOSE), text("c")], "a", "<tool_call>b</think>c"),
        (true, &[text("a\n")], "a", ""),
        (false, &[text("a"), Mark(OPEN), text("b")], "", "a<think>b"),
    ];
    for (begun, came, thoughts, answer) in cases {
        let parser = || ReasoningParser::new(begun, Marks::Tokens, Some("<tool_call>"));
        check(parser, came, thoughts, answer);
    }
    check(ReasoningParser::over, &[Mark(CLOSE), text("\n<think>a")], "", "<think>a");
    check(ReasoningParser::over, &[text("\n a"), Mark(CLOSE)], "", "\n a</think>");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// However a text is cut, the same comes out, and no letter is lost.
    #[test]
    fn any_text_in_any_cut(
        pieces in prop::collection::vec("(<think>|</think>|<tool_call>|<|/|think|>|a|é|\n| ){0,4}", 0..12),
        begun in any::<bool>(),
    ) {
        let whole = pieces.concat();
        let new = || ReasoningParser::new(begun, Marks::Text, Some("<tool_call>"));
        let came: Vec<Came> = pieces.iter().map(|piece| text(piece)).collect();
        let (thoughts, answer) = parsed(new(), &came);
        prop_assert_eq!(&parsed(new(), &[text(&whole)]), &(thoughts.clone(), answer.clone()));
        let letters = |text: &str| text.chars().filter(|c| "aé_".contains(*c)).collect::<String>();
        prop_assert_eq!(letters(&thoughts) + &letters(&answer), letters(&whole));
    }
}
