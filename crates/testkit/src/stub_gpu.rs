//! Libraries in place of an NVIDIA driver and of our CUDA object, which refuse in the ways that machines do.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A `libcuda.so.1`.
#[derive(Clone, Copy, Debug)]
pub struct StubDriver {
    /// What `cuInit` answers.
    pub init: i32,
    /// The newest CUDA that it says it runs.
    pub version: i32,
    /// How many devices it has.
    pub devices: i32,
}

impl StubDriver {
    /// A driver with nothing wrong.
    pub const GOOD: StubDriver = StubDriver { init: 0, version: 13_000, devices: 1 };

    /// A library that cannot be loaded, in `folder`, which is made: as on a machine without a driver, also where there
    /// is one. Gives the `LD_LIBRARY_PATH` that finds it first.
    pub fn absent(folder: &Path) -> String {
        std::fs::create_dir_all(folder).expect("a folder can be made");
        std::fs::write(folder.join("libcuda.so.1"), "").expect("a file can be written");
        library_path(folder)
    }

    /// Builds it in `folder`, which is made; gives the `LD_LIBRARY_PATH` that finds it first.
    pub fn build(&self, folder: &Path) -> String {
        let StubDriver { init, version, devices } = self;
        let source = format!(
            r#"
            #include <string.h>
            int cuInit(unsigned flags) {{ return {init}; }}
            int cuGetErrorString(int code, const char** text) {{ *text = "the stub refuses"; return 0; }}
            int cuDriverGetVersion(int* version) {{ *version = {version}; return 0; }}
            int cuDeviceGetCount(int* count) {{ *count = {devices}; return 0; }}
            int cuDeviceGet(int* device, int index) {{ *device = index; return 0; }}
            int cuDeviceGetName(char* name, int length, int device) {{ strcpy(name, "stub"); return 0; }}
            int cuDeviceTotalMem_v2(unsigned long* bytes, int device) {{ *bytes = 1 << 30; return 0; }}
            int cuDeviceGetAttribute(int* value, int attribute, int device) {{ *value = attribute == 75 ? 9 : 0; return 0; }}
            "#
        );
        compile(&source, folder, "libcuda.so.1");
        library_path(folder)
    }
}

/// An object with every function of the contract, which finds no device.
#[derive(Clone, Copy, Debug)]
pub struct StubObject<'a> {
    /// How far its interface is ahead of this program's.
    pub abi_ahead: i32,
    /// A function that it does not have.
    pub lacks: &'a str,
    /// What opening the device answers: a code of the CUDA runtime.
    pub open: i32,
    /// Compute capability of the device that it opens, 10 * major + minor.
    pub capability: u32,
}

impl StubObject<'_> {
    /// As our own on a machine without a device.
    pub const OURS: StubObject<'static> = StubObject { abi_ahead: 0, lacks: "", open: 100, capability: 90 };

    /// Builds it in `folder`, which is made.
    pub fn build(&self, folder: &Path) -> PathBuf {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/include/pinion_cuda.h");
        let header = std::fs::read_to_string(path).expect("the contract is in the repository");
        let after = header.split("PINION_CUDA_ABI = ").nth(1).expect("the contract has a number");
        let number: String = after.chars().take_while(char::is_ascii_digit).collect();
        let abi = number.parse::<i32>().expect("digits") + self.abi_ahead;
        let mut source = format!(
            "#include <string.h>\nint pinion_cuda_abi(void) {{ return {abi}; }}\n\
             const char* pinion_cuda_error_text(int code) {{ return \"the stub refuses\"; }}\n\
             int pinion_cuda_open(int index, void* facts) {{\n\
             memset(facts, 0, 160); strcpy(facts, \"Stub T4\"); ((unsigned*)facts)[37] = {};\n return {}; }}\n",
            self.capability, self.open
        );
        for name in functions(&header) {
            if !source.contains(&format!("{name}(")) && name != self.lacks {
                source += &format!("int {name}(void) {{ return 1; }}\n");
            }
        }
        compile(&source, folder, "libpinion_cuda.so")
    }
}

/// The names of all functions of the contract.
fn functions(header: &str) -> Vec<&str> {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let names = header.lines().filter(is_code).flat_map(|line| {
        let head = line.split('(').next().unwrap_or_default();
        let name = head.rsplit([' ', '*']).next().unwrap_or_default();
        (line.contains('(') && name.starts_with("pinion_cuda_")).then_some(name)
    });
    names.collect()
}

/// The loader's folders with this one first.
fn library_path(folder: &Path) -> String {
    let folder = folder.to_str().expect("temporary folders have UTF-8 names");
    match std::env::var("LD_LIBRARY_PATH") {
        Ok(others) if !others.is_empty() => format!("{folder}:{others}"),
        _ => folder.to_owned(),
    }
}

fn compile(source: &str, folder: &Path, name: &str) -> PathBuf {
    std::fs::create_dir_all(folder).expect("a folder can be made");
    let (text, library) = (folder.join("stub.c"), folder.join(name));
    std::fs::write(&text, source).expect("a file can be written");
    let flags = ["-shared", "-fPIC", "-w", "-x", "c", "-o"];
    let made = Command::new("g++").args(flags).arg(&library).arg(&text).status();
    assert!(made.expect("there is g++").success(), "{source}");
    library
}
