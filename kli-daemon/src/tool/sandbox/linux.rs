//! Landlock for files, signals and TCP; seccomp for all other ways out of the machine, and for sockets of other
//! programs, through which anything could be had done, also by this daemon itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, LandlockStatus, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, Scope, path_beneath_rules,
};
use rustix::thread::{self, CapabilitySet, CapabilitySets};
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};

use super::Sandbox;

/// Of what later kernels can, this is what was tried here.
const KNOWN: ABI = ABI::V7;
/// Files that take what is written and keep nothing.
const SINKS: &[&str] = &["/dev/null", "/dev/zero", "/dev/full"];

pub(super) fn restrict(sandbox: Sandbox, work_dir: &Path) -> Result<Vec<&'static str>, String> {
    let mut gaps = files(sandbox, work_dir)?;
    if let Err(error) = privileges() {
        tracing::warn!("commands keep root's capabilities: {error}");
        gaps.push("root keeps all its capabilities");
    }
    if let Err(error) = system_calls(sandbox) {
        tracing::warn!("the network cannot be closed off for commands: {error}");
        gaps.push("the network and sockets of other programs stay open");
    }
    Ok(gaps)
}

fn files(sandbox: Sandbox, work_dir: &Path) -> Result<Vec<&'static str>, String> {
    let status = landlock(sandbox, work_dir).map_err(|error| error.to_string())?;
    let abi = match status {
        LandlockStatus::Available { effective_abi, .. } => effective_abi,
        LandlockStatus::NotEnabled => return Err("Landlock is not enabled in this kernel".to_owned()),
        LandlockStatus::NotImplemented => return Err("this kernel has no Landlock".to_owned()),
    };
    let since = |needed: ABI, gap: &'static str| (abi < needed).then_some(gap);
    Ok([
        since(ABI::V3, "files outside can be truncated (before Linux 6.2)"),
        since(ABI::V5, "devices can be sent control commands (before Linux 6.10)"),
        since(ABI::V6, "processes outside can be sent signals (before Linux 6.12)"),
    ]
    .into_iter()
    .flatten()
    .collect())
}

/// Of root's powers only those over files and its own processes are left. The others go round all of this: over
/// devices, others' memory, the kernel.
fn privileges() -> rustix::io::Result<()> {
    let kept = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::KILL
        | CapabilitySet::SETGID
        | CapabilitySet::SETUID;
    let CapabilitySets { effective, permitted, .. } = thread::capabilities(None)?;
    if permitted.is_empty() {
        return Ok(());
    }
    // Else a program that root starts would have them again.
    for bit in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if !kept.contains(one) && thread::capability_is_in_bounding_set(one) == Ok(true) {
            thread::remove_capability_from_bounding_set(one)?;
        }
    }
    thread::clear_ambient_capability_set()?;
    let left = CapabilitySets {
        effective: effective & kept,
        permitted: permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    thread::set_capabilities(None, left)
}

fn landlock(sandbox: Sandbox, work_dir: &Path) -> Result<LandlockStatus, RulesetError> {
    let all = AccessFs::from_all(KNOWN);
    // The first version is a must, what later ones add is taken where it is there.
    let created = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    // `path_beneath_rules` passes over what does not exist, and leaves of the access what suits a file.
    let created = created
        .add_rules(path_beneath_rules(["/"], AccessFs::from_read(KNOWN)))?
        .add_rules(path_beneath_rules(SINKS, all))?;
    let created = match sandbox {
        Sandbox::WorkspaceWrite => created.add_rules(path_beneath_rules(writable(work_dir), all & !devices))?,
        Sandbox::ReadOnly | Sandbox::Off => created,
    };
    Ok(created.restrict_self()?.landlock)
}

fn writable(work_dir: &Path) -> Vec<PathBuf> {
    let temporary = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()];
    // A variable that says `/` is no reason to open everything.
    let temporary = temporary.into_iter().filter(|path| path.is_absolute() && path.parent().is_some());
    temporary.chain([work_dir.to_owned()]).collect()
}

fn system_calls(sandbox: Sandbox) -> Result<(), Box<dyn std::error::Error>> {
    let mut rules = BTreeMap::new();
    let always = Vec::new;
    let argument = |index, operator, value| -> Result<SeccompCondition, seccompiler::BackendError> {
        SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
    };
    let one = |condition| SeccompRule::new(vec![condition]);

    // Sockets inside the command's own processes are pairs, or streams that it binds and connects never: no Internet,
    // no netlink, no virtual machine's host, and no datagrams, which need no connection.
    let unix = libc::AF_UNIX.cast_unsigned().into();
    let kind = u64::from(libc::SOCK_DGRAM.cast_unsigned());
    rules.insert(
        libc::SYS_socket,
        vec![one(argument(0, SeccompCmpOp::Ne, unix)?)?, one(argument(1, SeccompCmpOp::MaskedEq(0xf), kind)?)?],
    );
    rules.insert(libc::SYS_connect, always());
    // With these, the calls above could be made unseen.
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register] {
        rules.insert(call, always());
    }
    if sandbox == Sandbox::ReadOnly {
        // Landlock does not look at these.
        for call in CHANGE_ATTRIBUTES {
            rules.insert(*call, always());
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        // The same calls by their numbers in the x32 ABI, which passes the check of the architecture.
        const X32: i64 = 0x4000_0000;
        let again: Vec<_> = rules.iter().map(|(call, rules)| (call | X32, rules.clone())).collect();
        rules.extend(again);
    }
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, std::env::consts::ARCH.try_into()?)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)?;
    Ok(())
}

const CHANGE_ATTRIBUTES: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    // setxattrat, removexattrat: the same number everywhere.
    463,
    466,
];
