//! The limit on descriptors, which every role inherits: as high as this process may set it.
//!
//! The usual soft limit of 1024 is there for programs that call `select`, which none of ours does.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Room for all connections of a frontend and its links. Not more: some tools that profilers start walk over all
/// numbers.
const DESCRIPTORS_WANTED: u64 = 65_536;

/// Raises the soft limit towards the hard one. Where the system refuses, the service holds fewer connections.
pub(crate) fn raise_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let wanted = hard.min(DESCRIPTORS_WANTED);
    if wanted > soft {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_goes_up_to_the_hard_one_and_never_down() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let low = hard.min(DESCRIPTORS_WANTED) - 1;
        setrlimit(Resource::RLIMIT_NOFILE, low, hard).unwrap();
        raise_limit();
        let raised = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(raised, (hard.min(DESCRIPTORS_WANTED), hard));
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
        raise_limit();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    }
}
