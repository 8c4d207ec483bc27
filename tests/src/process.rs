//! Looking at processes from outside (Linux).

use std::path::Path;

/// The processes that have this variable in their environment, but for the test itself. A daemon passes its
/// socket on to all that it starts, so this finds what it left behind, however detached.
pub fn with_variable(name: &str, value: &str) -> Vec<i32> {
    let wanted = format!("{name}={value}");
    let own = std::process::id().to_string();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|pid| *pid != own && pid.bytes().all(|b| b.is_ascii_digit()))
        .filter(|pid| {
            std::fs::read(Path::new("/proc").join(pid).join("environ"))
                .is_ok_and(|environ| environ.split(|b| *b == 0).any(|v| v == wanted.as_bytes()))
        })
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// One number of `/proc/PID/status`, such as `VmRSS`; sizes are in KiB there.
pub fn status(pid: u32, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

pub fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0)
}

/// The processor time that it has used, exactly.
pub fn cpu_time(pid: u32) -> Option<std::time::Duration> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both write to what they are given and keep nothing.
    let read = unsafe {
        libc::clock_getcpuclockid(i32::try_from(pid).ok()?, &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    read.then(|| std::time::Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanos))
}

/// Kills a child that has not ended in time, so that whoever reads its output does not wait for ever.
#[derive(Debug)]
pub struct Watchdog(#[expect(dead_code, reason = "dropping it ends the watch")] std::sync::mpsc::Sender<()>);

impl Watchdog {
    pub fn over(pid: u32) -> Watchdog {
        let (keep, dropped) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if dropped.recv_timeout(crate::PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                signal(pid, rustix::process::Signal::KILL);
            }
        });
        Watchdog(keep)
    }
}

pub fn signal(pid: u32, signal: rustix::process::Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}
