//! `pinion-doctor`: whether this machine can serve, and how well, one line for each check, with the remedy under what
//! is not well.
//!
//! A short-lived process that `pinion` becomes. What a check is: [`check`]. Each other module looks at one subject;
//! those that read files take the root of the tree as an argument, so that tests make worlds up. The configuration and
//! the model's config.json are judged by `pinion_config`, weights, tokenizer, libtorch and GPU by `pinion-engine
//! probe`: this program parses none of them itself. The sandbox comes last: it is entered for real, and there is no way
//! back.

mod check;
mod cpu;
mod disk;
mod engine;
mod fatbin;
mod gpu;
mod kernel;
mod limits;
mod model;
mod print;
mod programs;
mod sandbox;
mod tree;

use check::Check;
use engine::Probe;
use nix::sys::resource::{Resource, getrlimit};
use pinion_config::{DeviceChoice, DoctorCommand, Exit, LogForm, Machine, Memory};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

fn main() -> ExitCode {
    let command = match pinion_config::doctor_command() {
        Ok(command) => command,
        Err(faults) => {
            eprintln!("{}", faults.told(LogForm::Text, SystemTime::now()));
            return faults.exit().into();
        }
    };
    let checks = all(&command, Path::new("/"));
    print::print(&checks, &command);
    if check::any_failure(&checks) { Exit::System.into() } else { Exit::Ok.into() }
}

/// Every check, in the order in which they are shown.
fn all(command: &DoctorCommand, root: &Path) -> Vec<Check> {
    let machine = Machine::detect();
    let memory = Memory::from_sysfs(root);
    let folder = programs_folder();
    let mut checks = vec![cpu::features(&tree::text(root, "proc/cpuinfo")), cpu::cores(&machine)];
    checks.push(cpu::quota(&machine));
    checks.push(limits::memory(memory));
    let limit = |resource| getrlimit(resource).unwrap_or((0, 0));
    let capabilities = limits::capabilities(&tree::text(root, "proc/self/status"));
    checks.push(limits::locked(limit(Resource::RLIMIT_MEMLOCK), capabilities));
    checks.push(limits::descriptors(limit(Resource::RLIMIT_NOFILE)));
    checks.push(limits::tasks(root, limit(Resource::RLIMIT_NPROC), capabilities, machine.cpus.len()));
    checks.push(limits::huge_pages(&tree::text(root, "sys/kernel/mm/transparent_hugepage/enabled")));
    checks.extend([kernel::shared_memory(), kernel::start()]);
    checks.push(programs::present(&folder, command.kv_events));
    let pulled = model::pulled(command, &folder.join(programs::PULL));
    let mut resolved = model::resolved(command, &machine, pulled.as_ref());
    let probe = Probe::take(&folder.join(programs::ENGINE), &resolved, command);
    if command.device == DeviceChoice::Auto && probe.refuses_gpu() {
        // As `pinion serve` falls back to the CPU.
        let without_gpu = Machine { has_nvidia_gpu: false, ..machine.clone() };
        resolved = model::resolved(command, &without_gpu, pulled.as_ref());
    }
    checks.push(engine::libtorch(&probe));
    checks.extend(gpu::all(command, root, &probe, machine.has_nvidia_gpu));
    checks.push(kernel::port(command.address));
    checks.extend(model::checks(command, &resolved, &probe, memory));
    checks.extend(disk::cache(command.cache.as_deref()));
    checks.extend(sandbox::enter());
    checks
}

/// Where this program and those beside it stand.
fn programs_folder() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().map(PathBuf::from).unwrap_or_default()
}
