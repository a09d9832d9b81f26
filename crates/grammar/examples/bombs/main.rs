//! What each bomb costs: `cargo run --release -p pinion-grammar --example bombs [TOKENIZER_FOLDER]`.

use pinion_grammar::{Checker, Next, Vocabulary, Words};
use pinion_protocol::{Grammar, GrammarField, StopIds};
use pinion_random::Random;
use std::time::{Duration, Instant};

mod list;

fn main() {
    // As much stack as the threads that compile have.
    let run = std::thread::Builder::new().stack_size(64 << 20).spawn(run).expect("a thread can be started");
    run.join().expect("the run ends");
}

fn run() {
    let folder = std::env::args().nth(1);
    let words = match &folder {
        Some(folder) => {
            let codec = pinion_text::TextCodec::load(folder.as_ref()).expect("the folder has a tokenizer");
            Words::of(&codec, codec.vocab_size(), codec.eos_id().map_or(StopIds::NONE, StopIds::one))
                .expect("its tokens add up to text")
        }
        None => Words {
            bytes: (0..=255).map(|byte| vec![byte]).chain([Vec::new()]).collect(),
            stop_ids: StopIds::one(256),
            marks: None,
            drops_first_space: false,
        },
    };
    let began = Instant::now();
    let vocabulary = Vocabulary::new(words.clone()).expect("the words are a vocabulary");
    println!("{} tokens, tables in {:?}", vocabulary.vocab_size(), began.elapsed());
    let mut checker = Checker::start(Ok(words));
    println!("{:50} {:>10} {:>10} {:>7}  verdict", "bomb", "check", "mask max", "tokens");
    for bomb in list::bombs() {
        let grammar = Grammar { kind: bomb.kind, field: GrammarField::GuidedGrammar, text: bomb.text.into() };
        let began = Instant::now();
        let verdict = checker.check(&grammar);
        let check = began.elapsed();
        let (slowest, tokens) = match &verdict {
            Ok(()) => follow(vocabulary.compile(&grammar).expect("it was compiled before")),
            Err(_) => (Duration::ZERO, 0),
        };
        let verdict: String = verdict.map_or_else(|fault| fault.message, |()| "taken".to_owned());
        let verdict: String = verdict.chars().take(70).filter(|c| *c != '\n').collect();
        let ms = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
        let name = format!("{}{}", bomb.name, if bomb.refused { "" } else { " (may pass)" });
        println!("{name:50} {:>10} {:>10} {:>7}  {verdict}", ms(check), ms(slowest), tokens);
    }
}

/// The slowest mask of a text of up to 200 tokens, and how many there were.
fn follow(mut matcher: pinion_grammar::Matcher) -> (Duration, usize) {
    let (mut bits, mut slowest, mut random) = (Vec::new(), Duration::ZERO, Random::new(1));
    for count in 0..200 {
        let began = Instant::now();
        let next = matcher.next(&mut bits);
        slowest = slowest.max(began.elapsed());
        if !matches!(next, Ok(Next::Tokens)) {
            return (slowest, count);
        }
        let set: Vec<u32> =
            (0..bits.len() as u32 * 32).filter(|t| bits[(t / 32) as usize] >> (t % 32) & 1 == 1).collect();
        if matcher.advance(random.pick(&set)).is_err() {
            return (slowest, count);
        }
    }
    (slowest, 200)
}
