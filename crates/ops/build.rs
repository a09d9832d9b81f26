//! Compiles the part of kernels/cpu that shares threads, and kernels/shim (with feature `torch`), and links libtorch's
//! own OpenMP runtime. crates/kernels compiles the kernels themselves.

use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let kernels = root.join("kernels");
    for watched in ["cpu/parallel.cpp", "cpu/attention_internal.h", "include", "shim"] {
        println!("cargo:rerun-if-changed={}", kernels.join(watched).display());
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let libtorch = std::env::var_os("CARGO_FEATURE_TORCH").map(|_| libtorch_folder(&root));

    // Without libtorch there is no OpenMP runtime to share, and the kernels run on the calling thread.
    let openmp = if libtorch.is_some() { "-fopenmp" } else { "-Wno-unknown-pragmas" };
    let mut parallel = compiler();
    parallel.flag("-fno-exceptions").flag("-fno-rtti").flag(openmp);
    let mut objects = parallel.file(kernels.join("cpu/parallel.cpp")).compile_intermediates();
    if let Some(libtorch) = &libtorch {
        let mut shim = compiler();
        shim.flag("-isystem").flag(libtorch.join("include")).define("_GLIBCXX_USE_CXX11_ABI", "1");
        let files =
            ["shim/cpu_linear.cpp", "shim/device.cpp", "shim/op_trace.cpp"].map(|file| kernels.join(file));
        objects.extend(shim.files(files).compile_intermediates());
    }
    cc::Build::new().cpp(true).objects(objects).compile("pinion_parallel");
    if let Some(libtorch) = &libtorch {
        println!("cargo:rustc-link-search=native={}", libtorch.join("lib").display());
        println!("cargo:rustc-link-lib=dylib:+verbatim=libgomp.so.1");
        println!("cargo:rustc-link-lib=dylib=torch_cpu");
        println!("cargo:rustc-link-lib=dylib=c10");
    }
}

fn compiler() -> cc::Build {
    let mut build = cc::Build::new();
    // Always optimised: tests in the dev profile run the kernels that ship.
    build.cpp(true).std("c++17").opt_level(3).warnings(true).extra_warnings(true).pic(true);
    build
}

/// The libtorch folder; without one the build ends here, with one sentence.
fn libtorch_folder(root: &Path) -> PathBuf {
    let folder = std::env::var_os("LIBTORCH").map_or_else(|| root.join(".libtorch"), PathBuf::from);
    if !folder.join("include/ATen").is_dir() || !folder.join("lib").is_dir() {
        eprintln!(
            "libtorch is not at {}: run deploy/setup.sh first (or build with --no-default-features).",
            folder.display()
        );
        std::process::exit(1);
    }
    folder
}
