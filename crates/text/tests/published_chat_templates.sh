#!/bin/bash
# Renders the chat templates that models are published with (Llama 3, Qwen 2.5 and 3, Mistral, Gemma, DeepSeek, Phi and
# others: over 100), and compares each text with jinja2's, byte for byte. The templates are not in this repository; they
# come with two packages, which are fetched for the test and not installed: trl and axolotl, both Apache-2.0.
# Needs python3 with pip and venv. Takes about a minute, most of it the build.
set -euo pipefail
cd "$(dirname "$0")/../../.."
out=target/published_chat_templates
rm -rf "$out"
mkdir -p "$out/packages"
python3 -m venv "$out/venv"
"$out/venv/bin/pip" install --quiet jinja2==3.1.6
"$out/venv/bin/pip" install --quiet --no-deps --target "$out/packages/trl" trl==1.16.0
"$out/venv/bin/pip" install --quiet --no-deps --target "$out/packages/axolotl" axolotl==0.19.0
"$out/venv/bin/python" crates/text/tests/make_chat_fixtures.py "$out" \
    trl="$out/packages/trl/trl/chat_templates" \
    axolotl="$out/packages/axolotl/axolotl/utils/chat_templates/templates"
cargo test -p pinion-text --test chat_templates -- --ignored published_templates_render_as_in_jinja2
