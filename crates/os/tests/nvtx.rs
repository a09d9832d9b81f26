//! NVTX against stand-ins for a tool's library, compiled here: the ranges arrive, by both ways in.
#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use pinion_os::nvtx::Nvtx;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What both ways share: pushes and pops are written to a file, so that another process can read them.
const RECORDS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static void say(const char *what, const char *name) {
    FILE *file = fopen(getenv("NVTX_STAND_IN_LOG"), "a");
    fprintf(file, "%s %s\n", what, name);
    fclose(file);
}
"#;

const BY_NAME: &str = r#"
int nvtxRangePushA(const char *name) { say("push", name); return 0; }
int nvtxRangePop(void) { say("pop", ""); return 0; }
void nvtxMarkA(const char *text) { say("mark", text); }
"#;

/// As a tool's library does it: ask for the table, look at its size and version, put its functions in.
const INJECTED: &str = r#"
#include <stdint.h>
#include <stddef.h>
typedef void (*function)(void);
typedef struct { size_t size; int (*get)(int, function ***, unsigned *); } callbacks;
typedef struct { size_t size; uint32_t version; uint32_t reserved; void (*set)(uint32_t); } versions;
static int push(const char *name) { say("push", name); return 0; }
static int pop(void) { say("pop", ""); return 0; }
#ifndef WITHOUT_MARKS
static void mark(const char *text) { say("mark", text); }
#endif
int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const versions *version = export_table(3);
    const callbacks *calls = export_table(1);
    function **table = NULL;
    unsigned count = 0;
    if (export_table(99) || !version || version->version < 3 || version->size < sizeof *version) return 0;
    version->set(3);
    if (!calls || calls->size < sizeof *calls || calls->get(2, &table, &count)) return 0;
    if (!calls->get(1, &table, &count) || count <= 11) return 0;
    *table[9] = (function)push;
    *table[11] = (function)pop;
#ifndef WITHOUT_MARKS
    *table[2] = (function)mark;
#endif
    return 1;
}
"#;

fn compile(folder: &Path, name: &str, source: &str) -> PathBuf {
    let (code, library) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&code, format!("{RECORDS}{source}")).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &code])
        .status()
        .expect("a C compiler, as for the kernels");
    assert!(status.success());
    library
}

/// The first call decides for a process, so each way is a process of its own: this test binary again.
fn child(folder: &Path, test: &str, variable: (&str, &Path)) -> String {
    let log = folder.join(format!("{test}.log"));
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("NVTX_STAND_IN_LOG", &log)
        .env(variable.0, variable.1)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    std::fs::read_to_string(log).unwrap_or_default()
}

fn ranges(injection: Option<&std::ffi::OsStr>) {
    let nvtx = Nvtx::open(injection).expect("the stand-in is there");
    nvtx.push(c"pinion.outer");
    nvtx.push(c"pinion.inner");
    nvtx.pop();
    nvtx.mark(c"pinion.pause: 30 ms");
    nvtx.pop();
}

#[test]
#[ignore = "the child of ranges_reach_a_tool_by_both_ways"]
fn as_injected() {
    ranges(std::env::var_os("STAND_IN").as_deref());
}

#[test]
#[ignore = "the child of ranges_reach_a_tool_by_both_ways"]
fn as_by_name() {
    ranges(None);
}

#[test]
fn ranges_reach_a_tool_by_both_ways() {
    let folder = std::env::temp_dir().join(format!("pinion-nvtx-{}", std::process::id()));
    // A run that was killed left it, and its process ID comes again.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let injected = compile(&folder, "stand_in.so", INJECTED);
    compile(&folder, "libnvToolsExt.so.1", BY_NAME);
    let expected = "push pinion.outer\npush pinion.inner\npop \nmark pinion.pause: 30 ms\npop \n";
    assert_eq!(child(&folder, "as_injected", ("STAND_IN", &injected)), expected);
    assert_eq!(child(&folder, "as_by_name", ("LD_LIBRARY_PATH", &folder)), expected);
    // A tool that takes no marks gets none.
    let markless = compile(&folder, "markless.so", &format!("#define WITHOUT_MARKS\n{INJECTED}"));
    std::fs::remove_file(folder.join("as_injected.log")).unwrap();
    let expected = "push pinion.outer\npush pinion.inner\npop \npop \n";
    assert_eq!(child(&folder, "as_injected", ("STAND_IN", &markless)), expected);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_library_that_is_none_is_an_error_in_words() {
    let error = Nvtx::open(Some("/nonexistent/tool.so".as_ref())).unwrap_err();
    assert!(error.contains("/nonexistent/tool.so"), "{error}");
}
