//! The rebuilt tokenizer against tiktoken's own encoder, which shares no code with it but the ranks.

use std::collections::HashSet;

use super::*;
use crate::make_model::rng::Rng;

const SEED: u64 = 50_257;
const RANDOM_TEXTS: usize = 2_000;

const WRITTEN: &[&str] = &[
    "",
    " ",
    "\n\n\n",
    "   leading and trailing   ",
    "tabs\tand\r\nline ends\u{a0}and\u{2003}wide spaces",
    "It's we'll they've I'd can't you're I'm 'S 'LL",
    "fn main() { println!(\"{:>8.3}\", 1e-9_f64); } // 0xdead_beef",
    "{\"a\": [1, 2.5, null], \"b\": {\"c\": \"\\u00e9\"}}",
    "https://example.org/a/b?c=d&e=f#g",
    "Größe, naïve, façade, Ærøskøbing, Ŝaŭmo, İstanbul, ﬁnal",
    "敏捷的棕色狐狸跳过了懒狗。素早い茶色の狐。날쌘 갈색 여우",
    "Съешь же ещё этих мягких французских булок",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "धूप में बैठकर हिंदी में लिखना",
    "ไทยไม่มีช่องว่างระหว่างคำ",
    "👨\u{200d}👩\u{200d}👧\u{200d}👦 🏳️\u{200d}🌈 👍🏽 e\u{301} \u{feff}bom",
    "1234567890 3.14159 1,000,000 ½ ² Ⅷ ٣",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!?!?...---===+++***///\\\\\\",
    " petertodd SolidGoldMagikarp",
];

/// Blocks that random texts draw from: ASCII, whitespace, accents, Greek, Cyrillic, Hebrew, Arabic, Devanagari,
/// Thai, kana, Han, Hangul, emoji, symbols.
const BLOCKS: &[(u32, u32)] = &[
    (0x20, 0x7f),
    (0x09, 0x0e),
    (0xa0, 0x180),
    (0x370, 0x400),
    (0x400, 0x500),
    (0x5d0, 0x5eb),
    (0x600, 0x700),
    (0x900, 0x980),
    (0xe00, 0xe5c),
    (0x3040, 0x3100),
    (0x4e00, 0xa000),
    (0xac00, 0xd7a4),
    (0x1f300, 0x1f700),
    (0x2000, 0x2c00),
];

fn random_text(rng: &mut Rng) -> String {
    let mut text = String::new();
    let run_count = 1 + rng.next_u64() % 12;
    for _ in 0..run_count {
        // One run in four draws from all of Unicode, the others stay in one block.
        let all = rng.next_u64().is_multiple_of(4);
        let (from, to) = if all { (1, 0x110000) } else { BLOCKS[rng.next_u64() as usize % BLOCKS.len()] };
        let length = 1 + rng.next_u64() % 16;
        let span = u64::from(to - from);
        text.extend((0..length).filter_map(|_| char::from_u32(from + (rng.next_u64() % span) as u32)));
        if rng.next_u64().is_multiple_of(2) {
            text.push(' ');
        }
    }
    text
}

#[test]
fn has_the_published_sizes() {
    let tokenizer = gpt2().unwrap();
    assert_eq!(tokenizer.get_vocab_size(true), 50_257);
    assert_eq!(tokenizer.token_to_id(END_OF_TEXT), Some(END_OF_TEXT_ID));
    assert_eq!(tokenizer.token_to_id("Ġthe"), Some(262));
    let ranks = tiktoken_rs::r50k_base().unwrap();
    let tokens = ordinary_tokens(&ranks, END_OF_TEXT_ID);
    let merges = recover_merges(&tokens);
    assert_eq!(merges.len(), MERGE_COUNT);
    // The first and last lines of the published merges.txt.
    assert_eq!(merges[0], (&b" "[..], &b"t"[..]));
    assert_eq!(merges[MERGE_COUNT - 1], (&b" g"[..], &b"azed"[..]));
    assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len());
}

#[test]
fn gives_the_ids_of_tiktoken_and_the_text_back() {
    let tokenizer = gpt2().unwrap();
    let reference = tiktoken_rs::r50k_base().unwrap();
    let mut rng = Rng::new(SEED);
    let texts: Vec<String> = WRITTEN
        .iter()
        .map(|&text| text.to_owned())
        .chain((0..RANDOM_TEXTS).map(|_| random_text(&mut rng)))
        .chain(include_str!("tokenizer.rs").lines().map(str::to_owned))
        .collect();
    assert!(texts.len() > 2_000);
    for (index, text) in texts.iter().enumerate() {
        let ids = tokenizer.encode(text.as_str(), false).unwrap().get_ids().to_vec();
        assert_eq!(ids, reference.encode_with_special_tokens(text), "text {index} of seed {SEED}: {text:?}");
        assert_eq!(&tokenizer.decode(&ids, false).unwrap(), text, "text {index} of seed {SEED}");
    }
}

#[test]
fn survives_saving_and_loading() {
    let tokenizer = gpt2().unwrap();
    let loaded: Tokenizer = tokenizer.to_string(false).unwrap().parse().unwrap();
    let text = "The end.<|endoftext|>A beginning, 敏捷的 👍🏽";
    let ids = tokenizer.encode(text, true).unwrap().get_ids().to_vec();
    assert!(ids.contains(&END_OF_TEXT_ID));
    assert_eq!(loaded.encode(text, true).unwrap().get_ids(), ids);
}
