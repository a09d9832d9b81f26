//! Answers made of vectors: `/v1/embeddings` as OpenAI has it, `/v1/score` and `/v1/rerank` as vLLM has them.
//!
//! The service gives each text the vector that the model made of it. What a request asks of it happens here: cut,
//! normalised, compared, written.

use serde::Serialize;
use std::collections::HashMap;

/// A shorter vector than this counts as this long, as torch's `normalize` has it.
const LENGTH_MIN: f64 = 1e-12;

/// What every answer begins with.
#[derive(Clone, Debug)]
pub struct Head {
    /// The answer's id.
    pub id: String,
    /// Seconds since 1970.
    pub created_s: u64,
    /// The served name.
    pub model: String,
}

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A list of numbers.
    Floats,
    /// Their bytes, little-endian fp32, in base64.
    Base64,
}

impl Encoding {
    /// Bytes that a number takes in an answer, rounded up.
    pub fn number_bytes(self) -> usize {
        match self {
            // Such as `-0.00000123456789,`.
            Encoding::Floats => 18,
            // Four letters for three bytes.
            Encoding::Base64 => 6,
        }
    }
}

/// Which texts of a request are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The first one with each of the others.
    FirstWithRest,
    /// Each with the one beside it: 0 and 1, 2 and 3, ..
    Neighbours,
}

/// The cosines of pairs of texts, whose vectors come in any order. Of a pair that is complete only its cosine is kept,
/// and the vector of a text that more are compared with.
#[derive(Debug)]
pub struct Comparison {
    pairing: Pairing,
    cosines: Vec<f32>,
    /// That of the text with index 0, if the others are compared with it.
    first: Option<Vec<f32>>,
    /// Vectors whose other one has not come, by the text's index.
    waiting: HashMap<usize, Vec<f32>>,
}

impl Comparison {
    /// Of this number of texts.
    pub fn new(pairing: Pairing, text_count: usize) -> Comparison {
        let pairs = match pairing {
            Pairing::FirstWithRest => text_count.saturating_sub(1),
            Pairing::Neighbours => text_count / 2,
        };
        Comparison { pairing, cosines: vec![0.0; pairs], first: None, waiting: HashMap::new() }
    }

    /// Takes the vector of a text.
    ///
    /// # Panics
    /// If there is no text with this index.
    pub fn take(&mut self, index: usize, values: Vec<f32>) {
        match self.pairing {
            Pairing::Neighbours => match self.waiting.remove(&(index ^ 1)) {
                Some(other) => self.cosines[index / 2] = cosine(&values, &other),
                None => drop(self.waiting.insert(index, values)),
            },
            Pairing::FirstWithRest if index == 0 => {
                for (index, other) in self.waiting.drain() {
                    self.cosines[index - 1] = cosine(&values, &other);
                }
                self.first = Some(values);
            }
            Pairing::FirstWithRest => match &self.first {
                Some(first) => self.cosines[index - 1] = cosine(first, &values),
                None => drop(self.waiting.insert(index, values)),
            },
        }
    }

    /// The cosines of all pairs, in their order.
    pub fn into_scores(self) -> Vec<f32> {
        self.cosines
    }
}

/// Cuts a vector at `dimensions`, then gives it the length 1 if it is to be `normalized`.
pub fn finish(values: &mut Vec<f32>, dimensions: Option<u32>, normalized: bool) {
    if let Some(dimensions) = dimensions {
        values.truncate(dimensions as usize);
    }
    if normalized {
        let length = dot(values, values).sqrt().max(LENGTH_MIN);
        values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

fn dot(one: &[f32], other: &[f32]) -> f64 {
    one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The cosine of the angle between two vectors.
pub fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let lengths = (dot(one, one) * dot(other, other)).sqrt().max(LENGTH_MIN);
    (dot(one, other) / lengths) as f32
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl Usage {
    fn of(prompt_tokens: u64) -> Usage {
        Usage { prompt_tokens, total_tokens: prompt_tokens }
    }
}

#[derive(Serialize)]
struct List<'a, T> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<T>,
    usage: Usage,
}

fn list<T: Serialize>(head: &Head, data: Vec<T>, prompt_tokens: u64) -> Vec<u8> {
    let Head { id, created_s, model } = head;
    let usage = Usage::of(prompt_tokens);
    written(&List { id, object: "list", created: *created_s, model, data, usage })
}

fn written(answer: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, answer);
    out
}

fn put(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value).expect("numbers and strings always serialise");
}

/// The answer of `/v1/embeddings`. Each vector is dropped when it is written.
pub fn embeddings(head: &Head, vectors: Vec<Vec<f32>>, encoding: Encoding, prompt_tokens: u64) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Values<'a> {
        Floats(&'a [f32]),
        Base64(String),
    }
    #[derive(Serialize)]
    struct Embedding<'a> {
        index: usize,
        object: &'static str,
        embedding: Values<'a>,
    }
    let Head { id, created_s, model } = head;
    let numbers: usize = vectors.iter().map(Vec::len).sum();
    let mut out = Vec::with_capacity(numbers * encoding.number_bytes());
    out.extend_from_slice(b"{\"id\":");
    put(&mut out, id);
    out.extend_from_slice(b",\"object\":\"list\",\"created\":");
    put(&mut out, created_s);
    out.extend_from_slice(b",\"model\":");
    put(&mut out, model);
    out.extend_from_slice(b",\"data\":[");
    for (index, values) in vectors.into_iter().enumerate() {
        let embedding = match encoding {
            Encoding::Floats => Values::Floats(&values),
            Encoding::Base64 => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Values::Base64(base64(&bytes))
            }
        };
        if index > 0 {
            out.push(b',');
        }
        put(&mut out, &Embedding { index, object: "embedding", embedding });
    }
    out.extend_from_slice(b"],\"usage\":");
    put(&mut out, &Usage::of(prompt_tokens));
    out.push(b'}');
    out
}

/// The answer of `/v1/score`.
pub fn scores(head: &Head, scores: &[f32], prompt_tokens: u64) -> Vec<u8> {
    #[derive(Serialize)]
    struct Score {
        index: usize,
        object: &'static str,
        score: f32,
    }
    let one = |(index, score): (usize, &f32)| Score { index, object: "score", score: *score };
    list(head, scores.iter().enumerate().map(one).collect(), prompt_tokens)
}

/// The answer of `/v1/rerank`: the `top` best of `scores`, one for each document, best first and among equals the
/// first. The documents are shown if they are `Some`.
pub fn ranking(
    head: &Head,
    scores: &[f32],
    documents: Option<&[String]>,
    top: usize,
    prompt_tokens: u64,
) -> Vec<u8> {
    #[derive(Serialize)]
    struct Document<'a> {
        text: &'a str,
    }
    #[derive(Serialize)]
    struct Ranked<'a> {
        index: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        document: Option<Document<'a>>,
        relevance_score: f32,
    }
    #[derive(Serialize)]
    struct Ranking<'a> {
        id: &'a str,
        model: &'a str,
        usage: Usage,
        results: Vec<Ranked<'a>>,
    }
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let ranked = |index: usize| Ranked {
        index,
        document: documents.and_then(|all| all.get(index)).map(|text| Document { text }),
        relevance_score: scores[index],
    };
    let results = order.into_iter().take(top).map(ranked).collect();
    written(&Ranking { id: &head.id, model: &head.model, usage: Usage::of(prompt_tokens), results })
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn head() -> Head {
        Head { id: "x-1".to_owned(), created_s: 7, model: "tiny".to_owned() }
    }

    fn read(answer: &[u8]) -> Value {
        serde_json::from_slice(answer).expect("an answer is JSON")
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("\u{7ff}?>", "378/Pg=="),
        ] {
            assert_eq!(base64(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_vector_is_cut_before_it_is_normalised() {
        let finished = |dimensions, normalized| {
            let mut values = vec![3.0, 4.0, 12.0];
            finish(&mut values, dimensions, normalized);
            values
        };
        assert_eq!(finished(None, false), [3.0, 4.0, 12.0]);
        assert_eq!(finished(Some(2), true), [0.6, 0.8]);
        assert_eq!(finished(Some(2), false), [3.0, 4.0]);
        let mut zero = vec![0.0; 3];
        finish(&mut zero, None, true);
        assert_eq!(zero, [0.0; 3]);
    }

    #[test]
    fn embeddings_are_lists_or_their_bytes() {
        let vectors = vec![vec![0.1, -1.0], vec![1e-8, 2.0]];
        let answer = read(&embeddings(&head(), vectors.clone(), Encoding::Floats, 9));
        assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("tiny")));
        assert_eq!(answer["usage"], json!({"prompt_tokens": 9, "total_tokens": 9}));
        let first = &answer["data"][0];
        assert_eq!((&first["index"], &first["object"]), (&json!(0), &json!("embedding")));
        // The shortest decimals that give the same fp32.
        assert_eq!(first["embedding"].to_string(), "[0.1,-1.0]");
        let answer = read(&embeddings(&head(), vectors[1..].to_vec(), Encoding::Base64, 9));
        assert_eq!(answer["data"][0]["embedding"], json!(base64(&[0x77, 0xcc, 0x2b, 0x32, 0, 0, 0, 0x40])));
    }

    #[test]
    fn no_number_takes_more_room_than_is_reckoned() {
        let numbers: Vec<f32> =
            (0..1000_u32).map(|at| f32::from_bits(0x8000_0001 + at * 0x0010_2030)).collect();
        for encoding in [Encoding::Floats, Encoding::Base64] {
            let without = embeddings(&head(), vec![Vec::new(); 2], encoding, 9).len();
            let with = embeddings(&head(), vec![numbers.clone(); 2], encoding, 9).len();
            assert!(with - without <= 2 * numbers.len() * encoding.number_bytes(), "{encoding:?}");
        }
    }

    #[test]
    fn pairs_are_compared_in_any_order() {
        let texts = [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [4.0, 3.0]];
        let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]];
        for (pairing, expected) in
            [(Pairing::FirstWithRest, vec![0.0, 0.6, 0.8]), (Pairing::Neighbours, vec![0.0, 0.96])]
        {
            for order in orders {
                let mut comparison = Comparison::new(pairing, texts.len());
                order.into_iter().for_each(|index| comparison.take(index, texts[index].to_vec()));
                assert!(comparison.waiting.is_empty());
                assert_eq!(comparison.into_scores(), expected, "{pairing:?} {order:?}");
            }
        }
    }

    #[test]
    fn a_ranking_has_the_best_first_and_the_first_of_equals() {
        let documents: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let ranked = |documents, top| read(&ranking(&head(), &[0.5, -1.0, 0.75, 0.5], documents, top, 4));
        let answer = ranked(Some(documents.as_slice()), 3);
        assert_eq!(
            answer["results"],
            json!([
                {"index": 2, "document": {"text": "c"}, "relevance_score": 0.75},
                {"index": 0, "document": {"text": "a"}, "relevance_score": 0.5},
                {"index": 3, "document": {"text": "d"}, "relevance_score": 0.5}
            ])
        );
        assert_eq!(ranked(None, 1)["results"], json!([{"index": 2, "relevance_score": 0.75}]));
        assert_eq!(ranked(None, 9)["results"].as_array().map(Vec::len), Some(4));
        let answer = read(&scores(&head(), &[0.25], 4));
        assert_eq!(answer["data"], json!([{"index": 0, "object": "score", "score": 0.25}]));
        assert_eq!(cosine(&[3.0, 4.0], &[-3.0, -4.0]), -1.0);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
    }
}
