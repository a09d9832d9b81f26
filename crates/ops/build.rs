//! Compiles kernels/cpu (always) and kernels/shim (with feature `torch`), and links libtorch's own OpenMP runtime.

use std::path::{Path, PathBuf};

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let kernels = root.join("kernels");
    for folder in ["cpu", "include", "shim"] {
        println!("cargo:rerun-if-changed={}", kernels.join(folder).display());
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let libtorch = std::env::var_os("CARGO_FEATURE_TORCH").map(|_| libtorch_folder(&root));

    let cpu = kernels.join("cpu");
    let mut objects = kernel_objects(&cpu, &["paged_attention.cpp", "kv_append.cpp", "rows.cpp"], &[]);
    // Products and the sampler's walks round each operation by itself on every level, so that their bits are the same.
    let apart = ["-ffp-contract=off"];
    objects.extend(kernel_objects(
        &cpu,
        &["quantized.cpp", "quantized_pack.cpp", "packed.cpp", "packed_pack.cpp"],
        &apart,
    ));
    // Without libtorch there is no OpenMP runtime to share, and the kernels run on the calling thread.
    let openmp: &[&str] = if libtorch.is_some() { &["-fopenmp"] } else { &["-Wno-unknown-pragmas"] };
    objects.extend(kernel_objects(&cpu, &["parallel.cpp"], openmp));
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        objects.extend(kernel_objects(&cpu, &["attention_avx2.cpp", "rows_avx2.cpp"], &["-mavx2", "-mfma"]));
        objects.extend(kernel_objects(&cpu, &["quantized_avx2.cpp"], &[&apart[..], &["-mavx2"]].concat()));
        let packed = [&apart[..], &["-mavx2", "-mfma", "-mf16c"]].concat();
        objects.extend(kernel_objects(&cpu, &["packed_avx2.cpp", "walks_avx2.cpp"], &packed));
        objects.extend(kernel_objects(&cpu, &["walks.cpp"], &[]));
        // GCC 12's own intrinsics headers trip its uninitialized warnings.
        let quiet = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"];
        let avx512 = ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl"];
        objects.extend(kernel_objects(
            &cpu,
            &["attention_avx512.cpp", "rows_avx512.cpp"],
            &[&avx512[..], &quiet].concat(),
        ));
        let products = [&avx512[..], &quiet, &apart].concat();
        objects.extend(kernel_objects(
            &cpu,
            &["quantized_avx512.cpp", "packed_avx512.cpp", "walks_avx512.cpp"],
            &products,
        ));
        let vnni = [&products[..], &["-mavx512vnni"]].concat();
        objects.extend(kernel_objects(&cpu, &["quantized_vnni.cpp"], &vnni));
        let bf16 = [&avx512[..], &quiet, &["-mavx512bf16"]].concat();
        objects.extend(kernel_objects(&cpu, &["attention_avx512_bf16.cpp"], &bf16));
        objects.extend(kernel_objects(&cpu, &["packed_bf16.cpp"], &[&bf16[..], &apart].concat()));
    }
    if let Some(libtorch) = &libtorch {
        let include = libtorch.join("include");
        let mut shim = compiler();
        shim.flag("-isystem").flag(&include).define("_GLIBCXX_USE_CXX11_ABI", "1");
        let files =
            ["shim/cpu_linear.cpp", "shim/device.cpp", "shim/op_trace.cpp"].map(|file| kernels.join(file));
        objects.extend(shim.files(files).compile_intermediates());
    }
    let mut library = cc::Build::new();
    library.cpp(true).objects(objects).compile("pinion_kernels");
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

fn kernel_objects(folder: &Path, files: &[&str], flags: &[&str]) -> Vec<PathBuf> {
    let mut build = compiler();
    build.flag("-fno-exceptions").flag("-fno-rtti");
    for flag in flags {
        build.flag(flag);
    }
    build.files(files.iter().map(|file| folder.join(file))).compile_intermediates()
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
