//! How an answer's text is made of its tokens, and what is left of its prompt, as a body says it.

use crate::asked::{check_field, passes};
use pinion_frontend::admission::Api;
use pinion_protocol::tokenizer_inbox::Truncation;
use serde_json::json;

/// A completion goes on with its prompt, a chat only where it is asked to; its prompt is cut at the end that is named.
#[test]
fn how_the_text_is_made_and_which_end_of_the_prompt_is_cut() {
    for (api, fields, continues) in [
        (Api::Completions, json!({}), true),
        (Api::Generate, json!({}), true),
        (Api::Chat, json!({}), false),
        (Api::Chat, json!({"continue_final_message": true}), true),
        (Api::Chat, json!({"continue_final_message": false}), false),
    ] {
        let form = passes(api, fields.clone()).form;
        assert_eq!((form.continues, form.special, form.marks), (continues, false, false), "{api:?} {fields}");
    }
    let special = passes(Api::Completions, json!({"skip_special_tokens": false}));
    assert!(special.form.special && special.shown.style.special);
    let as_ids = passes(Api::Chat, json!({"logprobs": true, "return_tokens_as_token_ids": true}));
    assert!(as_ids.shown.style.as_ids);
    for api in [Api::Completions, Api::Chat, Api::Generate] {
        for (side, expected) in [
            (json!(null), Truncation::Last(2)),
            (json!("left"), Truncation::Last(2)),
            (json!("right"), Truncation::First(2)),
        ] {
            let fields = json!({"truncate_prompt_tokens": 2, "truncation_side": side});
            assert_eq!(passes(api, fields).truncation, expected, "{api:?} {side}");
        }
        check_field(api, "truncation_side", &["\"middle\"", "1", "[]"], &["null", "\"left\"", "\"right\""]);
    }
    for api in [Api::Completions, Api::Chat] {
        check_field(api, "return_tokens_as_token_ids", &["0", "\"true\""], &["null", "false", "true"]);
    }
}
