// The official JavaScript client, unchanged, against BASE_URL: completions and chat, whole and streamed.
// Prints one line, or throws. Works with any model: greedy answers are compared with themselves.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

// The client is installed in a cache folder, not beside this file.
const require = createRequire(`${process.env.NODE_FOLDER}/`);
const { OpenAI, BadRequestError, NotFoundError } = require("openai");
const version = JSON.parse(readFileSync(`${process.env.NODE_FOLDER}/node_modules/openai/package.json`)).version;

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const messages = [
    { role: "system", content: "You are a poet." },
    { role: "user", content: [{ type: "text", text: "Speak of the sea." }] },
];
const tokens = 24;

async function checkCompletions(model) {
    const asked = { model, prompt: "The sea", max_tokens: tokens, temperature: 0 };
    const whole = await client.completions.create(asked);
    assert.equal(whole.object, "text_completion");
    assert.ok(["length", "stop"].includes(whole.choices[0].finish_reason));
    assert.ok(whole.usage.completion_tokens > 0 && whole.usage.completion_tokens <= tokens);

    let text = "";
    let chunks = 0;
    let usage = null;
    const reasons = [];
    const stream = await client.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
        usage = chunk.usage ?? usage;
        for (const choice of chunk.choices) {
            chunks += choice.text ? 1 : 0;
            text += choice.text;
            if (choice.finish_reason) reasons.push(choice.finish_reason);
        }
    }
    assert.equal(text, whole.choices[0].text);
    assert.ok(chunks > 1);
    assert.deepEqual(reasons, [whole.choices[0].finish_reason]);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
}

async function checkChat(model) {
    const asked = { model, messages, max_completion_tokens: tokens, temperature: 0 };
    const whole = await client.chat.completions.create(asked);
    assert.equal(whole.choices[0].message.role, "assistant");

    let text = "";
    const roles = [];
    const reasons = [];
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
        const choice = chunk.choices[0];
        if (choice.delta.role) roles.push(choice.delta.role);
        text += choice.delta.content ?? "";
        if (choice.finish_reason) reasons.push(choice.finish_reason);
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(roles, ["assistant"]);
    assert.deepEqual(reasons, [whole.choices[0].finish_reason]);
}

// A call and its answer go back to the model.
async function checkToolMessages(model) {
    const parameters = { type: "object", properties: { town: { type: "string" } }, required: ["town"] };
    const call = { id: "c1", type: "function", function: { name: "get_weather", arguments: '{"town": "Ulm"}' } };
    const answer = await client.chat.completions.create({
        model,
        messages: [
            { role: "user", content: "Weather in Ulm?" },
            { role: "assistant", content: null, tool_calls: [call] },
            { role: "tool", tool_call_id: "c1", content: '{"sky": "blue"}' },
        ],
        tools: [{ type: "function", function: { name: "get_weather", parameters } }],
        tool_choice: "none",
        max_tokens: tokens,
        temperature: 0,
    });
    assert.equal(answer.choices[0].message.tool_calls, undefined);
    assert.equal(typeof answer.choices[0].message.content, "string");
}

// A grammar makes any model call a tool: of its choice, or the one that is named.
async function checkForcedCalls(model) {
    const properties = { sky: { enum: ["blue", "grey"] } };
    const parameters = { type: "object", properties, required: ["sky"], additionalProperties: false };
    const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
    const asked = { model, messages, tools, parallel_tool_calls: false, max_tokens: 200, temperature: 0 };
    const named = { type: "function", function: { name: "get_weather" } };
    for (const [tool_choice, reason] of [["required", "tool_calls"], [named, "stop"]]) {
        const whole = (await client.chat.completions.create({ ...asked, tool_choice })).choices[0];
        assert.equal(whole.finish_reason, reason);
        const [call] = whole.message.tool_calls;
        assert.ok(["blue", "grey"].includes(JSON.parse(call.function.arguments).sky));
        const runner = client.chat.completions.stream({ ...asked, tool_choice });
        const streamed = (await runner.finalChatCompletion()).choices[0];
        assert.equal(streamed.finish_reason, reason);
        assert.equal(streamed.message.tool_calls[0].function.name, "get_weather");
        assert.equal(streamed.message.tool_calls[0].function.arguments, call.function.arguments);
    }
}

async function checkErrors(model) {
    const bad = client.completions.create({ model, prompt: "x", max_tokens: 0 });
    await assert.rejects(bad, (error) => error instanceof BadRequestError && error.param === "max_tokens");
    const unknown = client.completions.create({ model: "nobody", prompt: "x" });
    await assert.rejects(unknown, (error) => error instanceof NotFoundError && error.code === "model_not_found");
}

// What a client does that has read enough.
async function leaveEarly(model) {
    const stream = await client.completions.create({ model, prompt: "The sea", max_tokens: 200, stream: true });
    for await (const _ of stream) break;
}

const model = (await client.models.list()).data[0].id;
await checkCompletions(model);
await checkChat(model);
await checkToolMessages(model);
await checkForcedCalls(model);
await checkErrors(model);
await leaveEarly(model);
await checkCompletions(model);
console.log(`openai-node ${version}: ok`);
