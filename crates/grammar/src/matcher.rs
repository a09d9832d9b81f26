//! One text's way through its grammar: tokens in, the set of tokens that may follow out.

use crate::gate::{Gate, Passage};
use crate::limits::REASON_CHARS_MAX;
use crate::shape::{check_lark, check_regex, check_schema};
use crate::tokens::TokenRules;
use crate::vocabulary::Vocabulary;
use llguidance::api::{StopReason, TopLevelGrammar};
use pinion_protocol::{Grammar, GrammarKind, JSON_SEPARATORS, Reasoning};
use serde_json::{Value, json};
use std::sync::Arc;

/// What may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The tokens whose bits are set; the end-of-sequence tokens are among them where the text may end.
    Tokens,
    /// Nothing but the end: the text is complete.
    Complete,
}

/// What decides which tokens may follow.
enum Inner {
    /// A grammar, by the bytes of tokens.
    Library(Box<llguidance::Matcher>),
    /// Rules about ids.
    Tokens(TokenRules),
}

/// A compiled grammar and how far a text has come in it.
pub struct Matcher {
    inner: Inner,
    vocabulary: Arc<Vocabulary>,
    /// What of the text comes before the grammar.
    gate: Gate,
    /// No token has come, and the text begins with the next one.
    fresh: bool,
}

impl Vocabulary {
    /// Compiles a grammar. Bounded as [`crate::limits`] says, but not in time: see [`crate::Checker`].
    ///
    /// # Errors
    /// The reason, to follow the name of the field.
    pub fn compile(self: &Arc<Vocabulary>, grammar: &Grammar) -> Result<Matcher, String> {
        let inner = match source(grammar)? {
            None => Inner::Tokens(TokenRules::parse(&grammar.text, self.vocab_size)?),
            Some(source) => {
                let parser = self.factory.create_parser(source).map_err(|error| plain(&error.to_string()))?;
                let matcher = llguidance::Matcher::new(Ok(parser));
                if let Some(error) = matcher.get_error() {
                    return Err(plain(&error));
                }
                Inner::Library(Box::new(matcher))
            }
        };
        Ok(Matcher { inner, vocabulary: self.clone(), gate: Gate::Open, fresh: true })
    }
}

impl Matcher {
    /// The same for a text that may begin with reasoning, behind which the grammar begins. Rules about tokens hold from
    /// the first one on.
    pub fn behind(self, reasoning: Reasoning) -> Matcher {
        match self.inner {
            Inner::Library(_) => Matcher { gate: Gate::new(reasoning, self.vocabulary.marks), ..self },
            Inner::Tokens(_) => self,
        }
    }

    /// The same for a text that goes on with another if `continues`: its first space is shown.
    pub fn continuing(self, continues: bool) -> Matcher {
        Matcher { fresh: self.fresh && !continues, ..self }
    }

    /// Takes the next token of the text.
    ///
    /// # Errors
    /// The token may not follow, or the grammar is too complex here.
    pub fn advance(&mut self, token: u32) -> Result<(), String> {
        self.fresh = false;
        match self.gate.pass(token, self.vocabulary.bytes(token))? {
            Passage::Reasoning => return Ok(()),
            Passage::Grammar => {}
        }
        match &mut self.inner {
            Inner::Tokens(rules) => rules.advance(token),
            Inner::Library(matcher) => {
                let token = self.vocabulary.as_the_library_knows(token);
                matcher.consume_token(token).map_err(|error| plain(&error.to_string()))
            }
        }
    }

    /// Replaces `bits` by one bit for each token, set for those that may follow; unchanged if the text is complete.
    ///
    /// # Errors
    /// The grammar is too complex here, or nothing can follow.
    pub fn next(&mut self, bits: &mut Vec<u32>) -> Result<Next, String> {
        match self.gate {
            Gate::Open => self.next_of_grammar(bits),
            Gate::Token(_) | Gate::Text(_) => {
                bits.clear();
                bits.resize(self.vocabulary.vocab_size.div_ceil(u32::BITS) as usize, u32::MAX);
                Ok(Next::Tokens)
            }
            Gate::Start(marks) => {
                let next = self.next_of_grammar(bits)?;
                if next == Next::Tokens {
                    bits[marks.open as usize / 32] |= 1 << (marks.open % 32);
                }
                Ok(next)
            }
        }
    }

    fn next_of_grammar(&mut self, bits: &mut Vec<u32>) -> Result<Next, String> {
        let matcher = match &mut self.inner {
            Inner::Tokens(rules) => return rules.next(bits).map(|()| Next::Tokens),
            Inner::Library(matcher) => matcher,
        };
        if matcher.is_stopped() {
            return match matcher.stop_reason() {
                StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence => {
                    Ok(Next::Complete)
                }
                _ => Err(plain(&matcher.get_error().unwrap_or_default())),
            };
        }
        let mask = matcher.compute_mask().map_err(|error| plain(&error.to_string()))?;
        if mask.num_set() == 1 && mask.is_allowed(self.vocabulary.eos) {
            return Ok(Next::Complete);
        }
        bits.clear();
        bits.extend_from_slice(mask.as_slice());
        if mask.is_allowed(self.vocabulary.eos) {
            for id in &self.vocabulary.other_ends {
                bits[*id as usize / 32] |= 1 << (id % 32);
            }
        }
        if let Some(space_first) = self.vocabulary.space_first.as_ref().filter(|_| self.fresh) {
            let rest = || bits.iter().zip(space_first).map(|(bits, space)| bits & !space);
            if rest().any(|bits| bits != 0) {
                let rest: Vec<u32> = rest().collect();
                bits[..rest.len()].copy_from_slice(&rest);
            }
        }
        Ok(Next::Tokens)
    }

    /// Whether `token` may follow, found out without the mask: what a test holds the mask against.
    pub fn allows(&mut self, token: u32) -> bool {
        match self.gate {
            Gate::Token(_) | Gate::Text(_) => return true,
            Gate::Start(marks) if token == marks.open => return true,
            Gate::Start(_) | Gate::Open => {}
        }
        let matcher = match &mut self.inner {
            Inner::Tokens(rules) => return rules.allows(token),
            Inner::Library(matcher) => matcher,
        };
        if self.vocabulary.as_the_library_knows(token) == self.vocabulary.eos {
            return matcher.is_accepting().unwrap_or(false);
        }
        matcher.validate_tokens(&[token]).is_ok_and(|count| count == 1)
    }

    /// The same grammar at the same place, sharing nothing that could run out.
    pub fn fork(&self) -> Matcher {
        Matcher {
            inner: match &self.inner {
                Inner::Library(matcher) => Inner::Library(Box::new(matcher.deep_clone())),
                Inner::Tokens(rules) => Inner::Tokens(rules.clone()),
            },
            vocabulary: self.vocabulary.clone(),
            gate: self.gate.clone(),
            fresh: self.fresh,
        }
    }
}

/// The grammar in the library's terms, checked for shapes that it cannot bound; rules about tokens are none.
fn source(grammar: &Grammar) -> Result<Option<TopLevelGrammar>, String> {
    let text = &*grammar.text;
    let json = || serde_json::from_str::<Value>(text).map_err(|error| format!("is not JSON: {error}"));
    let source = match grammar.kind {
        GrammarKind::JsonObject => TopLevelGrammar::from_json_schema(compact(json!({"type": "object"}))),
        GrammarKind::JsonSchema => {
            let schema = json()?;
            check_schema(&schema)?;
            TopLevelGrammar::from_json_schema(compact(schema))
        }
        GrammarKind::Regex => {
            check_regex(text)?;
            TopLevelGrammar::from_regex(unanchored(text))
        }
        GrammarKind::Choice => {
            let Value::Array(choices) = json()? else { return Err("is not an array of strings".to_owned()) };
            let literals: Vec<String> = choices.iter().map(Value::to_string).collect();
            TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}", literals.join(" | ")))
        }
        GrammarKind::Lark => {
            check_lark(text)?;
            TopLevelGrammar::from_lark(text.to_owned())
        }
        GrammarKind::Tokens => return Ok(None),
    };
    Ok(Some(source))
}

/// JSON allows any amount of white space, and that is where weak models never stop: there is one space behind each
/// comma and colon, as Python's json.dumps writes it, and no other. A schema that says itself what it allows keeps its
/// word.
fn compact(mut schema: Value) -> Value {
    if let Value::Object(members) = &mut schema {
        let (item, key) = JSON_SEPARATORS;
        members.entry("x-guidance").or_insert_with(
            || json!({"whitespace_flexible": false, "item_separator": item, "key_separator": key}),
        );
    }
    schema
}

/// An expression without the anchors at its ends: the whole text must match anyway.
fn unanchored(expression: &str) -> &str {
    let begin = expression.strip_prefix('^').unwrap_or(expression);
    match begin.strip_suffix('$') {
        Some(end) if end.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0 => end,
        Some(_) | None => begin,
    }
}

/// The library's reason, without its appendices and short.
fn plain(reason: &str) -> String {
    let reason = reason.split("\n<").next().unwrap_or_default().trim();
    let mut plain: String = reason.chars().take(REASON_CHARS_MAX).collect();
    if plain.len() < reason.len() {
        plain.push_str("...");
    }
    match plain.as_str() {
        // The library's name for it.
        "" | "NoExtensionBias" => "no text can follow it".to_owned(),
        _ => plain,
    }
}
