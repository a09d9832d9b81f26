//! Compiles kernels/cpu, except what needs an OpenMP runtime (crates/ops/build.rs).

use std::path::{Path, PathBuf};

fn main() {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    for folder in ["cpu", "include"] {
        println!("cargo:rerun-if-changed={}", kernels.join(folder).display());
    }
    println!("cargo:rerun-if-changed=build.rs");

    let cpu = kernels.join("cpu");
    let mut objects = kernel_objects(&cpu, &["paged_attention.cpp", "rows.cpp"], &[]);
    // Products, the sampler's walks and what rounds to integers round each operation by itself on every level, so that
    // their bits are the same.
    let apart = ["-ffp-contract=off"];
    objects.extend(kernel_objects(
        &cpu,
        &["kv_append.cpp", "quantized.cpp", "quantized_pack.cpp", "packed.cpp", "packed_pack.cpp"],
        &apart,
    ));
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
    cc::Build::new().cpp(true).objects(objects).compile("pinion_kernels");
}

fn kernel_objects(folder: &Path, files: &[&str], flags: &[&str]) -> Vec<PathBuf> {
    let mut build = cc::Build::new();
    // Always optimised: tests in the dev profile run the kernels that ship.
    build.cpp(true).std("c++17").opt_level(3).warnings(true).extra_warnings(true).pic(true);
    build.flag("-fno-exceptions").flag("-fno-rtti");
    for flag in flags {
        build.flag(flag);
    }
    build.files(files.iter().map(|file| folder.join(file))).compile_intermediates()
}
