//! What this CPU can do.

use crate::ffi;

/// Instruction-set level of the vector kernels, in rising order; each runs wherever a higher one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelLevel {
    /// Portable C++.
    Scalar,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW and VL.
    Avx512,
    /// The above and avx512_bf16.
    Avx512Bf16,
}

impl KernelLevel {
    /// The best level that this CPU and operating system run.
    pub fn best() -> Self {
        // SAFETY: no arguments; the function reads cpuid once and is safe from any thread.
        match unsafe { ffi::pinion_best_level() } {
            3 => Self::Avx512Bf16,
            2 => Self::Avx512,
            1 => Self::Avx2,
            _ => Self::Scalar,
        }
    }

    /// Every level that this machine runs, lowest first.
    pub fn available() -> Vec<Self> {
        let best = Self::best();
        let all = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Avx512Bf16];
        all.into_iter().filter(|&level| level <= best).collect()
    }

    /// The number that the kernels know the level by.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Scalar => 0,
            Self::Avx2 => 1,
            Self::Avx512 => 2,
            Self::Avx512Bf16 => 3,
        }
    }
}

/// Instruction-set level of the products with quantised weights, in rising order. They need other instructions than
/// attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IntegerLevel {
    /// Portable C++.
    Scalar,
    /// AVX2.
    Avx2,
    /// AVX-512 F, BW and VL.
    Avx512,
    /// The above and avx512_vnni.
    Vnni,
}

impl IntegerLevel {
    /// The best level that this CPU and operating system run.
    pub fn best() -> Self {
        // SAFETY: no arguments; the function reads cpuid once and is safe from any thread.
        match unsafe { ffi::pinion_integer_level() } {
            3 => Self::Vnni,
            2 => Self::Avx512,
            1 => Self::Avx2,
            _ => Self::Scalar,
        }
    }

    /// Every level that this machine runs, lowest first.
    pub fn available() -> Vec<Self> {
        let all = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Vnni];
        all.into_iter().filter(|&level| level <= Self::best()).collect()
    }

    /// The number that the kernels know the level by; one above what the machine has is lowered to it.
    pub(crate) fn code(self) -> i32 {
        match self.min(Self::best()) {
            Self::Scalar => 0,
            Self::Avx2 => 1,
            Self::Avx512 => 2,
            Self::Vnni => 3,
        }
    }
}

/// Whether this CPU has instructions for bf16 products (avx512_bf16 or amx_bf16), so that bf16 is quicker than f32.
pub fn supports_bf16() -> bool {
    KernelLevel::best() == KernelLevel::Avx512Bf16 || has_tiles()
}

/// Whether this CPU multiplies tiles of bf16 (amx_bf16).
pub fn has_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // Leaf 7, subleaf 0, EDX bit 22 is amx_bf16. The tile state is enabled by the system on request, so AMX is
        // believed only together with a level that the kernels confirmed.
        let leaf = std::arch::x86_64::__cpuid_count(7, 0);
        leaf.edx & (1 << 22) != 0 && KernelLevel::best() >= KernelLevel::Avx512
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}
