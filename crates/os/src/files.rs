//! Landlock: which files a process may still open, which TCP port it may connect to, and that it reaches no one else
//! over the network or by a signal.
//!
//! Rules hold for the calling thread and those that it starts later; from Landlock's eighth version on, for all
//! threads. What is open already stays open.

use landlock::{
    ABI, Access, AccessFs, AccessNet, LandlockStatus, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The version whose rights are handled; older kernels enforce what they know of them.
const NEWEST: ABI = ABI::V6;
/// Entries of a folder that are looked at for links that lead out of it.
const ENTRIES_MAX: usize = 4096;

/// What may be opened. Folders stand for all that is beneath them; what does not exist is left out.
#[derive(Debug, Default)]
pub struct Files {
    /// For reading, and for mapping code from.
    pub read: Vec<PathBuf>,
    /// For making and writing files in.
    pub write: Vec<PathBuf>,
    /// The TCP port that may be connected to, at any address.
    pub connect: Option<u16>,
}

impl Files {
    /// Adds the folders of the libraries that this process has mapped: some load parts of themselves while they work.
    pub fn read_mapped_libraries(&mut self) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
        let is_library = |path: &&Path| path.to_string_lossy().contains(".so");
        let folders: BTreeSet<PathBuf> =
            paths.filter(is_library).filter_map(|path| path.parent().map(Path::to_owned)).collect();
        self.read.extend(folders);
    }

    /// Adds a folder and the places to which links in it lead, as in a Hugging Face cache.
    pub fn read_folder(&mut self, folder: &Path) {
        self.read.push(folder.to_owned());
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX) {
            if entry.file_type().is_ok_and(|kind| kind.is_symlink())
                && let Ok(target) = entry.path().canonicalize()
            {
                self.read.push(target);
            }
        }
    }
}

/// How much of it the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforced {
    /// All that was asked for.
    Fully,
    /// What an older version of it knows.
    InPart,
    /// Nothing: the kernel has it not, or not enabled.
    Not,
}

/// Restricts this thread, for good. Errors: the kernel has Landlock, and refuses.
pub fn restrict(files: &Files) -> Result<Enforced, String> {
    let port = files.connect.map(|port| Ok::<_, RulesetError>(NetPort::new(port, AccessNet::ConnectTcp)));
    let restricted = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rules(path_beneath_rules(&files.read, AccessFs::from_read(NEWEST))))
        .and_then(|rules| rules.add_rules(path_beneath_rules(&files.write, AccessFs::from_all(NEWEST))))
        .and_then(|rules| rules.add_rules(port))
        .and_then(|rules| rules.restrict_self())
        .map_err(|error| error.to_string())?;
    Ok(match (restricted.ruleset, restricted.landlock) {
        (RulesetStatus::FullyEnforced, _) => Enforced::Fully,
        (_, LandlockStatus::NotEnabled | LandlockStatus::NotImplemented) => Enforced::Not,
        (RulesetStatus::PartiallyEnforced, _) => Enforced::InPart,
        (RulesetStatus::NotEnforced, _) => Enforced::Not,
    })
}
