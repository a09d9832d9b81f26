//! What a role gives up once it is attached: docs/design/0011-sandbox.md.
//!
//! Capabilities are gone before a role's program starts (the launcher's `host.rs`). Here go the rest: other processes'
//! view of it, files beyond its work, system calls beyond its work. The order matters: what a role reads at attach
//! comes before.

use pinion_config::{Config, TorchKernels};
use pinion_os::calls::{self, Calls};
use pinion_os::files::{self, Enforced, Files};
use pinion_os::process;
use pinion_protocol::{Peer, Role};
use std::path::Path;

/// What an engine's libraries read while they work, beside their own folders: how the machine is built.
const ENGINE_READS: [&str; 4] = ["/etc/ld.so.cache", "/sys/devices/system", "/proc/cpuinfo", "/proc/meminfo"];

/// Folder in a model's folder with chat templates beside the default one.
const CHAT_TEMPLATES: &str = "additional_chat_templates";

/// By how much a role raises its `oom_score_adj` (proc(5)): all above the launcher, which nothing restarts; those whose
/// death costs a client least the most.
fn oom_score(role: Role) -> u16 {
    match role {
        Role::Launcher => 0,
        Role::Frontend => 100,
        Role::Engine => 200,
        Role::Tokenizer | Role::Detokenizer => 300,
        Role::Events => 400,
    }
}

/// Confines this process to what `me` does, for good. What the kernel lacks is said once; nothing of it keeps a role
/// from serving.
pub fn confine(me: Peer, config: &Config) {
    if let Err(error) = process::raise_oom_score(oom_score(me.role)) {
        tracing::warn!(%me, %error, "cannot raise /proc/self/oom_score_adj");
    }
    if !config.sandbox {
        return;
    }
    if me.role == Role::Engine && config.cuda.is_some() {
        tracing::info!(%me, "no filter of files and system calls: what the CUDA driver needs is not known");
        return;
    }
    if me.role == Role::Engine {
        process::ask_for_tiles();
    }
    if let Err(error) = process::hide() {
        tracing::warn!(%me, %error, "other processes of this user can look into it");
    }
    // The kernel is the same for all; the first frontend speaks for them.
    let speaks = (me.role, me.index) == (Role::Frontend, 0);
    match files::restrict(&files_of(me.role, config)) {
        Ok(Enforced::Fully) => {}
        Ok(Enforced::InPart) if speaks => {
            tracing::info!(
                "this kernel's Landlock is older than 6.12: not every file, socket and signal is fenced"
            );
        }
        Ok(Enforced::Not) if speaks => tracing::info!("this kernel has no Landlock: roles can open files"),
        Ok(Enforced::InPart | Enforced::Not) => {}
        Err(error) => tracing::warn!(%me, %error, "files are not fenced"),
    }
    match calls::restrict(calls_of(me.role, config)) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
            if speaks {
                tracing::info!("this kernel has no seccomp filters: roles can make any system call");
            }
        }
        Err(error) => tracing::warn!(%me, %error, "system calls are not filtered"),
    }
}

fn files_of(role: Role, config: &Config) -> Files {
    let mut files = Files::default();
    if role == Role::Events {
        return files;
    }
    files.read_folder(&config.model_dir);
    // In a cache of the hub what lies in there are links, too.
    let templates = config.model_dir.join(CHAT_TEMPLATES);
    if templates.is_dir() {
        files.read_folder(&templates);
    }
    if role == Role::Frontend {
        files.connect = config.observe.otlp.as_ref().map(|otlp| otlp.port);
    }
    if role == Role::Engine {
        files.read.extend(ENGINE_READS.map(Into::into));
        files.read_mapped_libraries();
        if let TorchKernels::On { object, .. } = &config.torch_kernels {
            files.read.push(object.clone());
        }
        files.write.extend(config.observe.record.as_deref().map(folder_of));
    }
    files
}

/// The folder of a file that may not exist yet.
fn folder_of(file: &Path) -> std::path::PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => ".".into(),
    }
}

fn calls_of(role: Role, config: &Config) -> Calls {
    Calls {
        accepts: matches!(role, Role::Frontend | Role::Events),
        connects: role == Role::Frontend && config.observe.otlp.is_some(),
        writes_files: role == Role::Engine && config.observe.record.is_some(),
        computes: role == Role::Engine,
    }
}
