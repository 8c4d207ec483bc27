//! Ending processes, all of them: a command's children may leave its process group, its session, and their
//! parents.
//!
//! Each command runs in a session of its own and bears a marker in its environment. On Linux, processes are found
//! by the marker (in `/proc/*/environ`), by the session, and by descent; only one that leaves all three (its
//! environment, its session and its parents, as a daemon does that cleans its environment) goes on. Elsewhere only
//! the process group is ended.

use std::sync::LazyLock;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// The variable that tells whose a process is: `<pid of the daemon>-<its instance>-<session>.<call>`.
pub(crate) const MARKER: &str = "KLI_CALL";

/// Which processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Those of one call.
    Call(String),
    /// Those of all calls of a session; the part of the marker before the point.
    Session(String),
    /// Those whose daemon is gone.
    Nobody,
}

impl Whose {
    fn matches(&self, marker: &str) -> bool {
        match self {
            Whose::Call(call) => marker == call,
            Whose::Session(session) => marker.strip_prefix(session.as_str()).is_some_and(|rest| rest.starts_with('.')),
            Whose::Nobody => is_orphaned(marker),
        }
    }
}

/// Tells two daemons apart that had the same process id, as is common in containers. No record bears it, so it
/// need not come from the daemon's clock and randomness.
static INSTANCE: LazyLock<String> = LazyLock::new(|| {
    let mut id = uuid::Uuid::new_v4().simple().to_string();
    id.truncate(12);
    id
});

/// The marker of a session of this daemon.
pub(crate) fn session_marker(number: u64) -> String {
    format!("{}-{}-{number}", std::process::id(), *INSTANCE)
}

fn is_orphaned(marker: &str) -> bool {
    let mut parts = marker.splitn(3, '-');
    let (Some(pid), Some(instance), Some(_)) = (parts.next(), parts.next(), parts.next()) else { return false };
    let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) else { return false };
    if pid == rustix::process::getpid() {
        return instance != *INSTANCE;
    }
    rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH)
}

/// Ends what commands of a daemon left that was itself killed; returns how many were ended. For the start of a
/// daemon, once it holds its lock.
pub fn end_orphans() -> usize {
    kill(&Whose::Nobody, None)
}

/// A command's processes. Dropped while armed, it ends them.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Option<Pid>,
    call: String,
    armed: bool,
}

impl Tree {
    pub(crate) fn new(root: Option<u32>, call: String) -> Tree {
        let root = root.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Tree { root, call, armed: true }
    }

    /// The root has ended by itself; its children may go on.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }

    /// The root has been waited for, so its process id may be given to another. Where there is no other way to its
    /// children, that risk is taken.
    pub(crate) fn forget_root(&mut self) {
        if cfg!(target_os = "linux") {
            self.root = None;
        }
    }

    /// Asks the process group to end, gives it the time until `gone`, then ends everything, and returns when it has
    /// ended.
    pub(crate) async fn end(mut self, gone: impl Future<Output = ()>) {
        let (root, call) = (self.root, Whose::Call(self.call.clone()));
        // Before the parents end: who is found by descent only would be found no more.
        let held = tokio::task::spawn_blocking(move || Held::find(&call, root)).await.unwrap_or_default();
        if let Some(root) = root {
            let _ = rustix::process::kill_process_group(root, Signal::TERM);
        }
        gone.await;
        self.armed = false;
        let call = Whose::Call(std::mem::take(&mut self.call));
        let _ = tokio::task::spawn_blocking(move || held.kill() + kill(&call, root)).await;
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.armed {
            kill(&Whose::Call(std::mem::take(&mut self.call)), self.root);
        }
    }
}

/// Kills until nothing is found any more, since what is killed may have forked just before. Blocks, for some
/// milliseconds. Returns how many were killed.
pub(crate) fn kill(whose: &Whose, root: Option<Pid>) -> usize {
    let mut killed = 0;
    // As long as a fork bomb or a process in an uninterruptible call is waited for.
    for _ in 0..200 {
        let held = Held::find(whose, root);
        if let Some(root) = root {
            let _ = rustix::process::kill_process_group(root, Signal::KILL);
        }
        if held.is_empty() {
            break;
        }
        killed += held.kill();
        std::thread::sleep(Duration::from_millis(2));
    }
    killed
}

/// Processes that were found, each held so that its number is given to no other.
#[cfg(target_os = "linux")]
#[derive(Debug, Default)]
struct Held(Vec<std::os::fd::OwnedFd>);

#[cfg(target_os = "linux")]
impl Held {
    fn find(whose: &Whose, root: Option<Pid>) -> Held {
        Held(linux::find(whose, root))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn kill(&self) -> usize {
        self.0.iter().filter(|process| rustix::process::pidfd_send_signal(process, Signal::KILL).is_ok()).count()
    }
}

/// Nothing can be found here.
#[cfg(not(target_os = "linux"))]
#[derive(Debug, Default)]
struct Held;

#[cfg(not(target_os = "linux"))]
impl Held {
    fn find(_: &Whose, _: Option<Pid>) -> Held {
        Held
    }

    fn is_empty(&self) -> bool {
        true
    }

    fn kill(&self) -> usize {
        0
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::{HashMap, HashSet};
    use std::io::Read as _;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt as _;

    use rustix::process::{Pid, PidfdFlags};

    use super::{MARKER, Whose};

    struct Stat {
        parent: i32,
        session: i32,
        dead: bool,
    }

    /// Everyone who is meant, each held by a descriptor, so that a signal reaches the process that was looked at
    /// and not a later one with its number.
    pub(super) fn find(whose: &Whose, root: Option<Pid>) -> Vec<OwnedFd> {
        let root = root.map(|pid| pid.as_raw_nonzero().get());
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let uid = rustix::process::geteuid().as_raw();
        let mut found = HashMap::new();
        let mut parents = HashMap::new();
        for pid in processes().filter(|pid| *pid != own && *pid != 1) {
            let Some((fd, stat)) = hold(pid) else { continue };
            parents.insert(pid, stat.parent);
            let in_session = root.is_some_and(|root| stat.session == root);
            // Others' environments cannot be read, and they cannot be killed either.
            let ours = || std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|m| uid == 0 || m.uid() == uid);
            if in_session || ours() && marker(pid).is_some_and(|marker| whose.matches(&marker)) {
                found.insert(pid, fd);
            }
        }
        // Descendants that changed both session and environment.
        let mut wanted: HashSet<i32> = found.keys().copied().chain(root).collect();
        loop {
            let more: Vec<i32> = parents
                .iter()
                .filter(|(pid, parent)| wanted.contains(parent) && !wanted.contains(pid))
                .map(|(pid, _)| *pid)
                .collect();
            if more.is_empty() {
                break;
            }
            for pid in more {
                wanted.insert(pid);
                if let Some((fd, stat)) = hold(pid)
                    && wanted.contains(&stat.parent)
                {
                    found.insert(pid, fd);
                }
            }
        }
        found.into_values().collect()
    }

    fn processes() -> impl Iterator<Item = i32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    }

    fn hold(pid: i32) -> Option<(OwnedFd, Stat)> {
        let fd = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let stat = parse(&stat)?;
        (!stat.dead).then_some((fd, stat))
    }

    /// `pid (name) state parent group session …`; the name may hold anything, also `)`.
    fn parse(stat: &str) -> Option<Stat> {
        let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
        let dead = matches!(fields.next()?, "Z" | "X" | "x");
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(Stat { parent, session, dead })
    }

    fn marker(pid: i32) -> Option<String> {
        // Larger than the kernel lets an environment be by default.
        const LARGEST: u64 = 4 * 1024 * 1024;
        let mut environ = Vec::new();
        std::fs::File::open(format!("/proc/{pid}/environ")).ok()?.take(LARGEST).read_to_end(&mut environ).ok()?;
        let value = environ
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"="))?;
        String::from_utf8(value.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_tell_whose_a_process_is() {
        let own = session_marker(7);
        let gone = format!("{}-someotherinst-7.1", std::process::id());
        for (whose, marker, want) in [
            (Whose::Call(format!("{own}.1")), format!("{own}.1"), true),
            (Whose::Call(format!("{own}.1")), format!("{own}.12"), false),
            (Whose::Session(own.clone()), format!("{own}.12"), true),
            (Whose::Session(own.clone()), format!("{own}1.2"), false),
            (Whose::Nobody, format!("{own}.1"), false),
            (Whose::Nobody, gone, true),
            (Whose::Nobody, "1-other-7.1".into(), false),
            (Whose::Nobody, "2147483647-other-7.1".into(), true),
            (Whose::Nobody, "not ours".into(), false),
            (Whose::Nobody, "-5-x-1".into(), false),
        ] {
            assert_eq!(whose.matches(&marker), want, "{whose:?} {marker}");
        }
    }
}
