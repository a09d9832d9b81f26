// The AI SDK with its provider for OpenAI-compatible services, unchanged, against BASE_URL: whole and streamed text, an
// abort, tool calls, and a conversation with a tool in it. Prints one line, or throws. Works with any model: greedy answers are
// compared with themselves.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

// The client is installed in a cache folder, not beside this file.
const require = createRequire(`${process.env.NODE_FOLDER}/`);
const { APICallError, generateText, jsonSchema, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const version = JSON.parse(readFileSync(`${process.env.NODE_FOLDER}/node_modules/ai/package.json`)).version;

const baseURL = process.env.BASE_URL;
const provider = createOpenAICompatible({ name: "pinion", baseURL, apiKey: "none", includeUsage: true });
const id = (await (await fetch(`${baseURL}/models`)).json()).data[0].id;
const asked = { model: provider(id), temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
const prompt = { system: "You are a poet.", prompt: "Speak of the sea." };
const tools = {
    get_weather: tool({
        description: "The weather of a town",
        inputSchema: jsonSchema({ type: "object", properties: { town: { type: "string" } }, required: ["town"] }),
    }),
};

async function checkText() {
    const whole = await generateText({ ...asked, ...prompt });
    assert.ok(["length", "stop"].includes(whole.finishReason));
    assert.ok(whole.usage.outputTokens > 0 && whole.usage.inputTokens > 0);
    const stream = streamText({ ...asked, ...prompt });
    let text = "";
    let pieces = 0;
    for await (const piece of stream.textStream) {
        text += piece;
        pieces += 1;
    }
    assert.equal(text, whole.text);
    assert.ok(pieces > 1);
    assert.equal(await stream.finishReason, whole.finishReason);
    assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
}

// What a user does that has read enough.
async function checkAbort() {
    const controller = new AbortController();
    let aborted = false;
    const stream = streamText({
        ...asked,
        ...prompt,
        maxOutputTokens: 200,
        abortSignal: controller.signal,
        onAbort: () => (aborted = true),
    });
    for await (const part of stream.fullStream) {
        if (part.type === "text-delta") controller.abort();
    }
    assert.ok(aborted);
}

// A call and its answer, as the SDK sends them back.
async function checkToolMessages() {
    const messages = [
        { role: "user", content: "Weather in Ulm?" },
        { role: "assistant", content: [{ type: "tool-call", toolCallId: "c1", toolName: "get_weather", input: { town: "Ulm" } }] },
        { role: "tool", content: [{ type: "tool-result", toolCallId: "c1", toolName: "get_weather", output: { type: "json", value: { sky: "blue" } } }] },
        { role: "user", content: "And tomorrow?" },
    ];
    const answer = await generateText({ ...asked, messages, tools, toolChoice: "none" });
    assert.ok(answer.usage.outputTokens > 0);
    assert.deepEqual(answer.toolCalls, []);
}

// A grammar makes any model call a tool.
async function checkCalls() {
    const inputSchema = jsonSchema({
        type: "object",
        properties: { sky: { enum: ["blue", "grey"] } },
        required: ["sky"],
        additionalProperties: false,
    });
    const words = { get_weather: tool({ description: "The weather", inputSchema }) };
    for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
        const call = { ...asked, ...prompt, maxOutputTokens: 200, tools: words, toolChoice };
        const whole = await generateText(call);
        assert.ok(["blue", "grey"].includes(whole.toolCalls[0].input.sky));
        const stream = streamText(call);
        let text = "";
        for await (const part of stream.fullStream) {
            if (part.type === "tool-input-delta") text += part.delta;
        }
        const calls = await stream.toolCalls;
        assert.equal(calls[0].toolName, "get_weather");
        if (calls.length === 1) assert.deepEqual(JSON.parse(text), calls[0].input);
        assert.deepEqual(calls.map((made) => made.input), whole.toolCalls.map((made) => made.input));
    }
}

async function checkErrors() {
    const bad = generateText({ ...asked, ...prompt, topP: 7 });
    await assert.rejects(bad, (error) => APICallError.isInstance(error) && error.statusCode === 400 && error.message.includes("top_p"));
}

await checkText();
await checkAbort();
await checkToolMessages();
await checkCalls();
await checkErrors();
await checkText();
console.log(`ai-sdk ${version}: ok`);
