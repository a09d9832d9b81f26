//! Which GPUs a CUDA object has code for, from the fat binaries in it. Nothing is loaded. The layout is not published
//! by NVIDIA; it was read off an object of nvcc 13: a header, then parts, each with the target's number.

/// First word of a fat binary.
const MAGIC: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
/// Bytes of its header, and the least of a part's.
const HEADER_BYTES: usize = 16;
const PART_BYTES_LOW: usize = 32;
/// Kinds of parts.
const PTX: u16 = 1;
const MACHINE_CODE: u16 = 2;

/// Code for one target, such as 90 for sm_90.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) number: u32,
    /// Compiled by the driver, for this target and newer ones.
    pub(crate) is_ptx: bool,
}

impl Target {
    /// Whether a device of this compute capability runs it.
    pub(crate) fn runs_on(self, capability: u32) -> bool {
        let same_family = self.number / 10 == capability / 10;
        self.number <= capability && (self.is_ptx || same_family)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_ptx { write!(f, "PTX {}", self.number) } else { write!(f, "sm_{}", self.number) }
    }
}

/// The targets of all fat binaries in the object, in order, each once.
pub(crate) fn targets(object: &[u8]) -> Vec<Target> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(offset) = object.get(at..).and_then(find_magic) {
        at += offset;
        at += parts(&object[at..], &mut found).unwrap_or(MAGIC.len());
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn find_magic(bytes: &[u8]) -> Option<usize> {
    bytes.windows(MAGIC.len()).position(|window| window == MAGIC)
}

/// Notes the parts of the fat binary that `bytes` begin with; its length, if it is one.
fn parts(bytes: &[u8], found: &mut Vec<Target>) -> Option<usize> {
    let length = HEADER_BYTES.checked_add(usize::try_from(word(bytes, 8)?).ok()?)?;
    let body = bytes.get(..length)?;
    if half(bytes, 6)? as usize != HEADER_BYTES {
        return None;
    }
    let mut at = HEADER_BYTES;
    while at < length {
        let part = body.get(at..)?;
        let (header, payload) = (double(part, 4)? as usize, double(part, 8)? as usize);
        if header < PART_BYTES_LOW {
            return None;
        }
        let (kind, number) = (half(part, 0)?, double(part, 28)?);
        if matches!(kind, PTX | MACHINE_CODE) {
            found.push(Target { number, is_ptx: kind == PTX });
        }
        at = at.checked_add(header)?.checked_add(payload)?;
    }
    Some(length)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn double(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: u16, number: u32, payload: usize) -> Vec<u8> {
        let mut part = vec![0; 64];
        part[..2].copy_from_slice(&kind.to_le_bytes());
        part[4..8].copy_from_slice(&64_u32.to_le_bytes());
        part[8..12].copy_from_slice(&(payload as u32).to_le_bytes());
        part[28..32].copy_from_slice(&number.to_le_bytes());
        part.extend(vec![7; payload]);
        part
    }

    fn fat(parts: &[Vec<u8>]) -> Vec<u8> {
        let body = parts.concat();
        let mut fat = MAGIC.to_vec();
        fat.extend([1, 0, 16, 0]);
        fat.extend((body.len() as u64).to_le_bytes());
        fat.extend(body);
        fat
    }

    #[test]
    fn targets_are_read_from_every_fat_binary() {
        let mut object = vec![1, 2, 3];
        object.extend(fat(&[part(2, 80, 8), part(2, 90, 16), part(1, 90, 24)]));
        object.extend([0; 5]);
        object.extend(fat(&[part(2, 80, 8), part(2, 89, 0)]));
        let shown: Vec<String> = targets(&object).iter().map(Target::to_string).collect();
        assert_eq!(shown, ["sm_80", "sm_89", "sm_90", "PTX 90"]);
        assert_eq!(targets(b"no fat binary"), []);
        // A part that says that it is longer than the file, and the bare magic.
        let mut cut = fat(&[part(2, 80, 8)]);
        cut.truncate(40);
        assert_eq!(targets(&[cut, MAGIC.to_vec()].concat()), []);
    }

    #[test]
    fn code_runs_on_its_family_and_ptx_on_what_is_newer() {
        let code = |number| Target { number, is_ptx: false };
        let ptx = Target { number: 90, is_ptx: true };
        for (target, capability, runs) in [
            (code(80), 80, true),
            (code(80), 86, true),
            (code(89), 86, false),
            (code(80), 90, false),
            (code(80), 75, false),
            (ptx, 89, false),
            (ptx, 90, true),
            (ptx, 120, true),
        ] {
            assert_eq!(target.runs_on(capability), runs, "{target} on {capability}");
        }
    }
}
