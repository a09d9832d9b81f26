//! How models write tool calls, and which way a model was trained to.

/// A way to write calls into text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// The whole answer is `{"name": .., "parameters": {..}}`, or several with `;` between them: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`, or `[TOOL_CALLS]name[ARGS]{..}`: Mistral.
    Mistral,
    /// `<tool_call><function=name><parameter=key>..</parameter></function></tool_call>`: Qwen 3 Coder.
    Qwen3Coder,
    /// The whole answer is `[name(key="value"), ..]`: Llama 4.
    Pythonic,
}

impl CallFormat {
    /// All of them.
    pub const ALL: [CallFormat; 5] = [
        CallFormat::Hermes,
        CallFormat::Llama3Json,
        CallFormat::Mistral,
        CallFormat::Qwen3Coder,
        CallFormat::Pythonic,
    ];

    /// As operators write it; vLLM's names.
    pub fn name(self) -> &'static str {
        match self {
            CallFormat::Hermes => "hermes",
            CallFormat::Llama3Json => "llama3_json",
            CallFormat::Mistral => "mistral",
            CallFormat::Qwen3Coder => "qwen3_coder",
            CallFormat::Pythonic => "pythonic",
        }
    }

    /// The format that a chat template tells its model to write, by the marks in its source.
    pub fn of_template(source: &str) -> Option<CallFormat> {
        let has = |mark: &str| source.contains(mark);
        if has("[TOOL_CALLS]") {
            return Some(CallFormat::Mistral);
        }
        // The same mark stands around other things than JSON.
        if has("<tool_call>") && has("<function=") && has("<parameter=") {
            return Some(CallFormat::Qwen3Coder);
        }
        if has("<tool_call>") && !has("<function=") && !has("<arg_key>") {
            return Some(CallFormat::Hermes);
        }
        if has("[func_name1(params_name1=") || has("<|python_start|>") {
            return Some(CallFormat::Pythonic);
        }
        let is_llama = has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\""));
        is_llama.then_some(CallFormat::Llama3Json)
    }

    /// What stands before a call.
    pub fn mark(self) -> &'static str {
        match self {
            CallFormat::Hermes | CallFormat::Qwen3Coder => "<tool_call>",
            CallFormat::Llama3Json => "<|python_tag|>",
            CallFormat::Mistral => "[TOOL_CALLS]",
            CallFormat::Pythonic => "<|python_start|>",
        }
    }
}
