//! Bodies of the routes of models that pool: `/v1/embeddings`, `/v1/score`, `/v1/rerank`.

use crate::admission::json::{Fields, wrong_type};
use crate::admission::prompts::Cut;
use crate::admission::unknown::{leftovers, members_of};
use crate::admission::{Limits, check_model, priority, prompts, user};
use crate::limits::INPUTS_MAX;
use pinion_api::vectors::{Encoding, Pairing};
use pinion_config::{Pooling, Shorter};
use pinion_protocol::Fault;
use pinion_protocol::tokenizer_inbox::{Prompt, Truncation};
use serde_json::Value;

/// Texts of which vectors are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Texts {
    /// Each gets a vector.
    pub prompts: Vec<Prompt>,
    /// How much of each is used.
    pub truncation: Truncation,
    /// A lower value is served earlier.
    pub priority: i32,
    /// On whose account they run, among those of the same key.
    pub user: Option<String>,
    /// Names of unknown fields.
    pub ignored: Vec<String>,
}

/// A request of `/v1/embeddings`.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// What to embed.
    pub texts: Texts,
    /// How vectors are written.
    pub encoding: Encoding,
    /// Length to which they are cut.
    pub dimensions: Option<u32>,
}

/// A request of `/v1/score`.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// What to compare.
    pub texts: Texts,
    /// Which of its texts are compared.
    pub pairing: Pairing,
}

/// A request of `/v1/rerank`: its texts are the query, then the documents.
#[derive(Clone, Debug, PartialEq)]
pub struct Rerank {
    /// What to compare.
    pub texts: Texts,
    /// Results, at most.
    pub top: usize,
    /// The documents, if results show them.
    pub documents: Option<Vec<String>>,
}

/// Admits a body of `/v1/embeddings`.
pub fn admit_embed(body: &[u8], limits: &Limits, pooling: &Pooling) -> Result<Embed, Fault> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, limits)?;
    let encoding = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => Encoding::Floats,
        Some("base64") => Encoding::Base64,
        Some(other) => {
            return Err(wrong_type("encoding_format", "\"float\" or \"base64\"", &Value::from(other)));
        }
    };
    let dimensions = dimensions(&mut fields, limits, pooling)?;
    let truncation = prompts::truncation(&mut fields, Cut::Right)?;
    let Some(input) = fields.take("input") else { return Err(Fault::field("input", "input is required")) };
    fields.put("prompt", input);
    let prompts = prompts::prompts(&mut fields, limits, (INPUTS_MAX, truncation));
    let prompts = prompts.map_err(|fault| renamed(fault, "input"))?;
    let prompts = prompts::framed(&mut fields, prompts)?;
    let texts = texts(fields, prompts, truncation, limits, "EmbeddingRequest")?;
    Ok(Embed { texts, encoding, dimensions })
}

/// Admits a body of `/v1/score`.
pub fn admit_score(body: &[u8], limits: &Limits) -> Result<Score, Fault> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, limits)?;
    let (first, second) = (strings(&mut fields, "text_1")?, strings(&mut fields, "text_2")?);
    let first_count = first.len();
    if first_count != 1 && first_count != second.len() {
        let message = format!(
            "text_2 has {} texts and text_1 has {first_count}: give one text_1, or as many on both sides",
            second.len()
        );
        return Err(Fault::field("text_2", message));
    }
    let truncation = prompts::truncation(&mut fields, Cut::Right)?;
    let (pairing, all): (_, Vec<String>) = match first_count {
        1 => (Pairing::FirstWithRest, first.into_iter().chain(second).collect()),
        _ => (Pairing::Neighbours, first.into_iter().zip(second).flat_map(<[String; 2]>::from).collect()),
    };
    let prompts = all.into_iter().map(Prompt::Text).collect();
    Ok(Score { texts: texts(fields, prompts, truncation, limits, "ScoreRequest")?, pairing })
}

/// Admits a body of `/v1/rerank`.
pub fn admit_rerank(body: &[u8], limits: &Limits) -> Result<Rerank, Fault> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, limits)?;
    let query =
        fields.string("query")?.ok_or_else(|| Fault::field("query", "query is required: a string"))?;
    let documents = documents(&mut fields)?;
    let top = match fields.integer("top_n", 0..=i128::from(i32::MAX))? {
        None | Some(0) => documents.len(),
        Some(top) => usize::try_from(top).unwrap_or(usize::MAX),
    };
    let shown = fields.boolean("return_documents")?.unwrap_or(true);
    let truncation = prompts::truncation(&mut fields, Cut::Right)?;
    let prompts = std::iter::once(query).chain(documents.iter().cloned()).map(Prompt::Text).collect();
    let texts = texts(fields, prompts, truncation, limits, "RerankRequest")?;
    Ok(Rerank { texts, top, documents: shown.then_some(documents) })
}

/// A fault of a prompt in the words of a route that has it in the field `place`.
pub fn renamed(fault: Fault, place: &str) -> Fault {
    if fault.param.as_deref() != Some("prompt") {
        return fault;
    }
    Fault { param: Some(place.to_owned()), message: fault.message.replace("prompt", place), ..fault }
}

/// The rest of a body of the published schema `of`.
fn texts(
    mut fields: Fields,
    prompts: Vec<Prompt>,
    truncation: Truncation,
    limits: &Limits,
    of: &str,
) -> Result<Texts, Fault> {
    let (priority, user) = (priority(&mut fields)?, user(&mut fields)?);
    let ignored = leftovers(|| members_of(of), &fields, limits.strict_fields)?;
    Ok(Texts { prompts, truncation, priority, user, ignored })
}

/// `dimensions`, which only models that were trained for it can honour.
fn dimensions(fields: &mut Fields, limits: &Limits, pooling: &Pooling) -> Result<Option<u32>, Fault> {
    const NAME: &str = "dimensions";
    let given = fields.integer(NAME, 1..=i128::from(pooling.width))?;
    let Some(given) = given.and_then(|given| u32::try_from(given).ok()) else { return Ok(None) };
    let message = match &pooling.shorter {
        _ if given == pooling.width => return Ok(Some(given)),
        Shorter::Any => return Ok(Some(given)),
        Shorter::Of(lengths) if lengths.contains(&given) => return Ok(Some(given)),
        Shorter::Of(lengths) => {
            format!("{NAME} must be {} or one of {lengths:?} for this model, got {given}", pooling.width)
        }
        Shorter::None => format!(
            "the model \"{}\" does not support matryoshka representation, so its vectors of {} numbers cannot be cut; \
             leave {NAME} out",
            limits.model, pooling.width
        ),
    };
    Err(Fault::field(NAME, message))
}

/// A string or a list of them.
fn strings(fields: &mut Fields, name: &str) -> Result<Vec<String>, Fault> {
    let wanted = format!("a string or an array of 1 to {INPUTS_MAX} strings");
    match fields.take(name) {
        None => Err(Fault::field(name, format!("{name} is required: {wanted}"))),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(items)) if (1..=INPUTS_MAX).contains(&items.len()) => {
            let text = |item: Value| match item {
                Value::String(text) => Ok(text),
                other => Err(wrong_type(name, &wanted, &other)),
            };
            items.into_iter().map(text).collect()
        }
        Some(other) => Err(wrong_type(name, &wanted, &other)),
    }
}

/// `documents`: strings, or objects with a `text` as Cohere's and Jina's clients send them.
fn documents(fields: &mut Fields) -> Result<Vec<String>, Fault> {
    const NAME: &str = "documents";
    let wanted = format!("an array of 1 to {INPUTS_MAX} strings, or of objects with a text");
    let items = match fields.take(NAME) {
        Some(Value::Array(items)) if (1..=INPUTS_MAX).contains(&items.len()) => items,
        None => return Err(Fault::field(NAME, format!("{NAME} is required: {wanted}"))),
        Some(other) => return Err(wrong_type(NAME, &wanted, &other)),
    };
    let text = |item: Value| {
        let text = item.as_str().or_else(|| item.get("text")?.as_str()).map(str::to_owned);
        text.ok_or_else(|| wrong_type(NAME, &wanted, &item))
    };
    items.into_iter().map(text).collect()
}
