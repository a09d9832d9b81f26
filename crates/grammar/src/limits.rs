//! What a grammar may cost. The bombs of `tests/bombs.rs` are what these numbers were measured with.

use llguidance::api::ParserLimits;
use std::time::Duration;

/// Fuel for building a grammar's expressions; a schema of 500 properties takes less.
const COMPILE_FUEL: u64 = 20_000;
/// Fuel of the lexer for one mask, or one token.
const MASK_LEXER_FUEL: u64 = 50_000;
/// Earley items for one mask.
const MASK_ITEMS_MAX: usize = 20_000;
/// Earley items in one row: the branching of a grammar.
const ROW_ITEMS_MAX: usize = 2_000;
/// States of a request's lexer, 1 to 2 KiB each.
const LEXER_STATES_MAX: usize = 10_000;
/// Symbols in a grammar's rules.
const GRAMMAR_SYMBOLS_MAX: usize = 50_000;

/// Product of the different numbers in a schema's `multipleOf`, and their sum over all uses: the library makes an
/// automaton of that number of states, out of reach of its fuel.
pub const MULTIPLE_OF_MAX: u64 = 2_000;
/// Expressions in a schema's `patternProperties`: the library compares each with each.
pub const PATTERN_PROPERTIES_MAX: usize = 16;
/// Members of a schema's `properties`, over the whole schema.
pub const PROPERTIES_MAX: usize = 400;
/// Rules and alternatives of a Lark grammar, counted by its lines and bars.
pub const LARK_RULES_MAX: usize = 1024;

/// Repetitions (`?`, `*`, `+`, `{n}`) in all expressions of a grammar: the library's work grows with their square.
pub const REPETITIONS_MAX: usize = 400;

/// CPU time that a compilation may take before it is given up.
pub const COMPILE_TIME_MAX: Duration = Duration::from_millis(40);
/// Wall time after which it is given up however little of the CPU it got.
pub const COMPILE_WALL_MAX: Duration = Duration::from_secs(3);
/// Longest wait for the vocabulary's tables after the start.
pub const LOAD_TIME_MAX: Duration = Duration::from_secs(20);
/// Compilations that were given up and still run; at this number, nothing else is compiled.
pub const GIVEN_UP_MAX: usize = 2;
/// How long after a token's commit a step may wait for the masks of its rows; past it their rows come again in the
/// next step, and the others go on.
pub const MASK_GRACE: Duration = Duration::from_millis(30);
/// How long after it a request whose mask is still missing ends.
pub const MASK_TIME_MAX: Duration = Duration::from_secs(2);
/// Stack of the threads that compile: the library descends as deep as a grammar's rules name each other. Only what is
/// used is ever backed by memory.
pub(crate) const STACK_BYTES: usize = 64 << 20;
/// Verdicts kept, so that the choices of one request cost one compilation.
pub(crate) const CACHED_MAX: usize = 32;
/// Characters of the library's reason that a client is shown.
pub(crate) const REASON_CHARS_MAX: usize = 300;

/// The library's own limits.
pub(crate) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: ROW_ITEMS_MAX,
        initial_lexer_fuel: COMPILE_FUEL,
        step_lexer_fuel: MASK_LEXER_FUEL,
        step_max_items: MASK_ITEMS_MAX,
        max_lexer_states: LEXER_STATES_MAX,
        max_grammar_size: GRAMMAR_SYMBOLS_MAX,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}
