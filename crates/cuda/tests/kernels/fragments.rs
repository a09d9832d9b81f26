//! What the lanes hold: the emulated `ldmatrix` and `mma` against the words of the PTX ISA.
//!
//! `ldmatrix.x4` (section "Warp-level matrix load instruction"): threads 0-7 give the rows of the first matrix, 8-15 of
//! the second and so on; a group of four threads holds a row, thread 0 its first two elements; `.trans` reads by
//! column. Of `mma.m16n8k16` only the outcome is looked at: a product, with the right operand loaded in both ways.

#![allow(unsafe_code, reason = "functions of the emulated object alone, found by name")]

use super::emulated::{emulated, object};
use half::f16;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

const LANES: usize = 32;

type Fragments = unsafe extern "C" fn(*const u16, *mut u32, *mut u32) -> i32;
type Products = unsafe extern "C" fn(*const u16, *const u16, *const u16, *mut f32) -> i32;

/// A function that only the emulated object has.
fn symbol(name: &str) -> *mut libc::c_void {
    let path = CString::new(object().as_os_str().as_bytes()).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: a NUL-terminated path and name; the object stays open until the process ends.
    let found = unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "the object has no {name:?}");
    found
}

#[test]
fn lanes_get_the_elements_that_the_isa_names() {
    let _device = emulated();
    // Element c of row r of matrix m says where it is from.
    let element = |matrix: usize, row: usize, column: usize| (matrix << 8 | row << 4 | column) as u16;
    let rows: Vec<u16> = (0..LANES * 8).map(|i| element(i / 64, i / 8 % 8, i % 8)).collect();
    let (mut plain, mut transposed) = ([[0u32; 4]; LANES], [[0u32; 4]; LANES]);
    // SAFETY: the function of this name in kernels/emulation/fragments.cpp has this type.
    let fragments: Fragments = unsafe { std::mem::transmute(symbol("pinion_emulation_fragments")) };
    // Twice: threads run in both orders.
    for _ in 0..2 {
        // SAFETY: [32, 8], [32, 4] and [32, 4], as it takes them.
        let code =
            unsafe { fragments(rows.as_ptr(), plain.as_mut_ptr().cast(), transposed.as_mut_ptr().cast()) };
        assert_eq!(code, 0);
        for lane in 0..LANES {
            for matrix in 0..4 {
                let two = |first: u16, second: u16| u32::from(first) | u32::from(second) << 16;
                let (of_four, pair) = (lane / 4, lane % 4 * 2);
                let by_row = two(element(matrix, of_four, pair), element(matrix, of_four, pair + 1));
                let by_column = two(element(matrix, pair, of_four), element(matrix, pair + 1, of_four));
                assert_eq!(plain[lane][matrix], by_row, "lane {lane}, matrix {matrix}");
                assert_eq!(transposed[lane][matrix], by_column, "lane {lane}, matrix {matrix}, transposed");
            }
        }
    }
}

#[test]
fn products_of_what_was_loaded_are_products() {
    let _device = emulated();
    let (m, n, k) = (16, 8, 16);
    // Small whole numbers: sums are exact in any order.
    let a: Vec<f32> = (0..m * k).map(|i| (i * 7 % 23) as f32 - 11.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| (i * 5 % 19) as f32 - 9.0).collect();
    let b_turned: Vec<f32> = (0..n * k).map(|i| b[i % k * n + i / k]).collect();
    let want: Vec<f32> =
        (0..m * n).map(|i| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum()).collect();
    let bits = |values: &[f32]| values.iter().map(|v| f16::from_f32(*v).to_bits()).collect::<Vec<u16>>();
    let (a, b, b_turned) = (bits(&a), bits(&b), bits(&b_turned));
    let mut sums = vec![0f32; 2 * m * n];
    // SAFETY: the function of this name in kernels/emulation/fragments.cpp has this type.
    let products: Products = unsafe { std::mem::transmute(symbol("pinion_emulation_products")) };
    // SAFETY: [16, 16], [16, 8], [8, 16] and [2, 16, 8], as it takes them.
    let code = unsafe { products(a.as_ptr(), b.as_ptr(), b_turned.as_ptr(), sums.as_mut_ptr()) };
    assert_eq!(code, 0);
    assert_eq!(sums[..m * n], want, "k first, transposed");
    assert_eq!(sums[m * n..], want, "n first, plainly");
}
