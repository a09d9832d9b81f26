//! Seccomp: which system calls a process may still make.
//!
//! Two filters. The first is an allow-list by number: a call that is not on it answers ENOSYS, as an older kernel
//! would, and for that glibc and libtorch have ways around. The second refuses, with EPERM, uses of known calls:
//! opening for writing, starting programs, signals to others, sockets. docs/design/0011-sandbox.md says why.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};
use std::collections::BTreeMap;
use std::io;

/// What a process does beyond computing, and reading and writing what it has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Takes connections from a listening socket that it has.
    pub accepts: bool,
    /// Connects to others by TCP. Landlock says to which port.
    pub connects: bool,
    /// Makes files and writes into them.
    pub writes_files: bool,
    /// Places memory on nodes, and asks for the tile registers of the CPU.
    pub computes: bool,
}

/// What every process may call: memory, threads, time, waiting, descriptors that it has, files that it may read.
const COMMON: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_munlock,
    libc::SYS_munlockall,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_clone,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_set_tid_address,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_getcpu,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_getrlimit,
    libc::SYS_setrlimit,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrandom,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_fadvise64,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_socketpair,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    SYS_FUTEX_WAITV,
];

/// The same by the names of old that only this architecture has.
#[cfg(target_arch = "x86_64")]
const COMMON_HERE: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_eventfd,
    libc::SYS_time,
    libc::SYS_getdents,
];
#[cfg(not(target_arch = "x86_64"))]
const COMMON_HERE: &[i64] = &[];

/// `futex_waitv`, the same number everywhere.
const SYS_FUTEX_WAITV: i64 = 449;

const ACCEPTS: &[i64] = &[libc::SYS_accept, libc::SYS_accept4];
const CONNECTS: &[i64] = &[libc::SYS_socket, libc::SYS_connect];
const WRITES_FILES: &[i64] =
    &[libc::SYS_ftruncate, libc::SYS_fallocate, libc::SYS_fsync, libc::SYS_fdatasync];
const COMPUTES: &[i64] = &[
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_mbind,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
];

/// Known calls that answer EPERM, whatever their arguments: a reader of a log understands that better than ENOSYS.
const REFUSED: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_fchmodat,
    libc::SYS_fchmod,
    libc::SYS_fchownat,
    libc::SYS_fchown,
    libc::SYS_truncate,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_memfd_create,
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_creat,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_chmod,
    libc::SYS_chown,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

/// Requests of ioctl(2) that concern the descriptor alone.
const IOCTLS: [u64; 6] =
    [libc::FIONBIO, libc::FIONREAD, libc::FIOCLEX, libc::FIONCLEX, libc::TCGETS, libc::TIOCGWINSZ];
/// Kinds of sockets but SOCK_STREAM: datagrams, raw, RDM, SEQPACKET, DCCP and packets. The bits above them are flags.
const OTHER_SOCKET_KINDS: [u64; 6] = [2, 3, 4, 5, 6, 10];
const SOCKET_KIND_MASK: u64 = 0xf;
/// `PR_SET_MM`.
const SET_MM: u64 = 35;
/// `ARCH_GET_XCOMP_SUPP`, the first of the requests about the CPU's state, and `ARCH_REQ_XCOMP_GUEST_PERM`, the last.
const XCOMP_FIRST: u64 = 0x1021;
const XCOMP_LAST: u64 = 0x1025;

/// Restricts every thread of this process, for good. Errors: the kernel has no filters (`Unsupported`), or refuses.
pub fn restrict(calls: Calls) -> io::Result<()> {
    let (allowed, refused) = (allow_list(calls)?, refusals(calls)?);
    install(&allowed)?;
    install(&refused)
}

fn install(program: &BpfProgram) -> io::Result<()> {
    apply_filter_all_threads(program).map_err(|error| match error {
        seccompiler::Error::Seccomp(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            io::Error::from(io::ErrorKind::Unsupported)
        }
        seccompiler::Error::Seccomp(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            io::Error::from(io::ErrorKind::Unsupported)
        }
        other => io::Error::other(other.to_string()),
    })
}

fn allow_list(calls: Calls) -> io::Result<BpfProgram> {
    let mut numbers = [COMMON, COMMON_HERE].concat();
    for (wanted, list) in [
        (calls.accepts, ACCEPTS),
        (calls.connects, CONNECTS),
        (calls.writes_files, WRITES_FILES),
        (calls.computes, COMPUTES),
    ] {
        if wanted {
            numbers.extend(list);
        }
    }
    let rules = numbers.into_iter().map(|number| (number, Vec::new())).collect();
    compiled(rules, SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow)
}

/// The second filter: a call that a rule fits is refused.
fn refusals(calls: Calls) -> io::Result<BpfProgram> {
    let own = u64::from(std::process::id());
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for number in REFUSED.iter().chain(REFUSED_HERE) {
        rules.insert(*number, Vec::new());
    }
    if calls.connects {
        rules.remove(&libc::SYS_connect);
        rules.insert(libc::SYS_socket, other_sockets()?);
        // A connection made by sending passes Landlock by.
        let fast_open = |flags: u8| {
            let bit = libc::MSG_FASTOPEN as u64;
            Ok::<_, io::Error>(vec![rule(vec![argument(flags, SeccompCmpOp::MaskedEq(bit), bit)?])?])
        };
        rules.insert(libc::SYS_sendto, fast_open(3)?);
        rules.insert(libc::SYS_sendmsg, fast_open(2)?);
    }
    let not_a_thread = argument(0, SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64), 0)?;
    rules.insert(libc::SYS_clone, vec![rule(vec![not_a_thread])?]);
    rules.insert(libc::SYS_tgkill, vec![rule(vec![argument(0, SeccompCmpOp::Ne, own)?])?]);
    let of_another = vec![argument(0, SeccompCmpOp::Ne, own)?, argument(0, SeccompCmpOp::Ne, 0)?];
    rules.insert(libc::SYS_prlimit64, vec![rule(of_another)?]);
    let mut processes = Vec::new();
    for option in
        [libc::PR_SET_DUMPABLE as u64, libc::PR_SET_PDEATHSIG as u64, libc::PR_SET_PTRACER as u64, SET_MM]
    {
        processes.push(rule(vec![argument(0, SeccompCmpOp::Eq, option)?])?);
    }
    rules.insert(libc::SYS_prctl, processes);
    let other: io::Result<Vec<_>> =
        IOCTLS.iter().map(|request| argument(1, SeccompCmpOp::Ne, *request)).collect();
    rules.insert(libc::SYS_ioctl, vec![rule(other?)?]);
    #[cfg(target_arch = "x86_64")]
    rules.insert(
        libc::SYS_arch_prctl,
        vec![
            rule(vec![argument(0, SeccompCmpOp::Lt, XCOMP_FIRST)?])?,
            rule(vec![argument(0, SeccompCmpOp::Gt, XCOMP_LAST)?])?,
        ],
    );
    if !calls.writes_files {
        rules.insert(libc::SYS_openat, writing(2)?);
        #[cfg(target_arch = "x86_64")]
        rules.insert(libc::SYS_open, writing(1)?);
    }
    compiled(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

/// Sockets that are not TCP's. MPTCP's and SMC's speak TCP to a peer that knows nothing else, and Landlock's ports do
/// not hold for them.
fn other_sockets() -> io::Result<Vec<SeccompRule>> {
    let family = |family: i32| argument(0, SeccompCmpOp::Ne, family as u64);
    let protocol = |protocol: i32| argument(2, SeccompCmpOp::Ne, protocol as u64);
    let mut rules = vec![
        rule(vec![family(libc::AF_INET)?, family(libc::AF_INET6)?])?,
        // 0 is the one of the kind.
        rule(vec![protocol(0)?, protocol(libc::IPPROTO_TCP)?])?,
    ];
    for kind in OTHER_SOCKET_KINDS {
        let is_kind = argument(1, SeccompCmpOp::MaskedEq(SOCKET_KIND_MASK), kind)?;
        rules.push(rule(vec![is_kind])?);
    }
    Ok(rules)
}

/// Opening with these flags may change a file.
fn writing(flags: u8) -> io::Result<Vec<SeccompRule>> {
    let mode = libc::O_ACCMODE as u64;
    let masks = [
        (mode, libc::O_WRONLY),
        (mode, libc::O_RDWR),
        (libc::O_CREAT as u64, libc::O_CREAT),
        (libc::O_TRUNC as u64, libc::O_TRUNC),
        (libc::O_TMPFILE as u64, libc::O_TMPFILE),
    ];
    let rules =
        masks.map(|(mask, bits)| rule(vec![argument(flags, SeccompCmpOp::MaskedEq(mask), bits as u64)?]));
    rules.into_iter().collect()
}

/// The kernel reads these arguments as 32-bit numbers, whatever stands above them.
fn argument(index: u8, compare: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, compare, value).map_err(io::Error::other)
}

fn rule(all_of: Vec<SeccompCondition>) -> io::Result<SeccompRule> {
    SeccompRule::new(all_of).map_err(io::Error::other)
}

fn compiled(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    fits: SeccompAction,
) -> io::Result<BpfProgram> {
    let architecture =
        std::env::consts::ARCH.try_into().map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
    let filter = SeccompFilter::new(rules, otherwise, fits, architecture).map_err(io::Error::other)?;
    filter.try_into().map_err(io::Error::other)
}
