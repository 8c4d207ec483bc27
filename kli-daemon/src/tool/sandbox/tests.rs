#![cfg(target_os = "linux")]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::Arc;

use super::*;
use crate::tool::run_command;
use crate::tool::testing::Place;

/// A place whose commands are confined, and a directory that is none of their business; none where the kernel
/// cannot.
fn confined(sandbox: Sandbox) -> Option<(Place, tempfile::TempDir)> {
    if let Err(error) = sandbox.gaps() {
        eprintln!("skipped: {error}");
        return None;
    }
    let mut place = Place::new();
    place.context.sandbox = sandbox;
    // Not among the temporary files, which may be written.
    let home = directories::BaseDirs::new()?.home_dir().to_owned();
    let outside = tempfile::Builder::new().prefix(".kli-sandbox-test").tempdir_in(home).ok()?;
    std::fs::write(outside.path().join("victim"), "safe").ok()?;
    Some((place, outside))
}

async fn run(place: &Place, command: &str) -> (i32, String) {
    let outcome = run_command(command, Some(std::time::Duration::from_secs(20)), &place.context).await.unwrap();
    (outcome.exit_code.unwrap_or(-1), outcome.output)
}

/// Each is tried for real; in `off` it works, so that a refusal says something.
const WAYS_TO_WRITE: &[&str] = &[
    "echo x > $O/victim",
    "echo x >> $O/victim",
    "echo x > $O/new",
    "rm $O/victim",
    "mv $O/victim $O/moved",
    "mv $O/victim .",
    "ln $O/victim hard && echo x > hard",
    "ln -s $O/victim soft && echo x > soft",
    "mkdir $O/dir",
    "mkfifo $O/fifo",
    "truncate -s 0 $O/victim",
    "cd $O && echo x > victim",
    "sh -c 'setsid sh -c \"echo x > $O/victim\"'",
    "echo x | tee $O/victim",
    "python3 -c 'import os; fd = os.open(os.environ[\"O\"], os.O_PATH); os.open(\"victim\", os.O_WRONLY, dir_fd=fd)'",
    "python3 -c 'import os; fd = os.open(os.environ[\"O\"] + \"/victim\", os.O_RDONLY); open(f\"/proc/self/fd/{fd}\", \"w\")'",
    "python3 -c 'import os; os.link(os.environ[\"O\"] + \"/victim\", os.environ[\"O\"] + \"/hard\")'",
];

#[tokio::test]
async fn files_outside_cannot_be_changed() {
    for sandbox in [Sandbox::WorkspaceWrite, Sandbox::ReadOnly] {
        let Some((mut place, outside)) = confined(sandbox) else { return };
        let variables = [("O".to_owned(), outside.path().to_string_lossy().into_owned())];
        place.context.env = Arc::new(variables.into_iter().collect());
        for way in WAYS_TO_WRITE {
            let (code, output) = run(&place, way).await;
            assert_ne!(code, 0, "{sandbox}: {way}: {output}");
            assert_eq!(std::fs::read(outside.path().join("victim")).unwrap(), b"safe", "{sandbox}: {way}");
            assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1, "{sandbox}: {way}");
        }
        assert_eq!(run(&place, "cat $O/victim").await, (0, "safe".into()), "reading is free");
        assert_ne!(run(&place, "unshare -rm true && unshare -rm mount --bind $O . && echo x > victim").await.0, 0);
    }
    // The same ways, open.
    for way in WAYS_TO_WRITE {
        let Some((mut place, outside)) = confined(Sandbox::Off) else { return };
        let variables = [("O".to_owned(), outside.path().to_string_lossy().into_owned())];
        place.context.env = Arc::new(variables.into_iter().collect());
        // A hard link needs one file system.
        if !way.starts_with("ln $O") {
            let (code, output) = run(&place, way).await;
            assert_eq!(code, 0, "off: {way}: {output}");
        }
    }
}

#[tokio::test]
async fn work_goes_on_in_the_work_directory() {
    let Some((place, _outside)) = confined(Sandbox::WorkspaceWrite) else { return };
    for command in [
        "echo x > f && cat f && chmod +x f && mv f g && mkdir d && mv g d/ && rm -r d",
        "git init -q . && echo 1 > f && git add f && git -c user.name=n -c user.email=e commit -qm one && git log --oneline",
        "echo x > /dev/null; t=$(mktemp) && echo x > $t && rm $t",
        "for d in /tmp /var/tmp /dev/shm; do [ ! -d $d ] || { t=$(mktemp -p $d) && rm $t; } || exit 1; done",
        "echo a | grep a | wc -l",
        "python3 -c 'import multiprocessing as m; print(m.Lock())'",
        "python3 -c 'import socket; a, b = socket.socketpair(); a.send(b\"x\"); assert b.recv(1) == b\"x\"'",
        "sleep 600 & kill $!",
    ] {
        let (code, output) = run(&place, command).await;
        assert_eq!(code, 0, "{command}: {output}");
    }
    let Some((place, _outside)) = confined(Sandbox::ReadOnly) else { return };
    place.write("f", "x");
    assert_eq!(run(&place, "cat f; ls; echo x > /dev/null; echo a | wc -l").await.0, 0);
    for command in
        ["echo y > f", "echo x > new", "rm f", "echo x > ${TMPDIR:-/tmp}/kli-x", "chmod 777 f", "touch f", "chown 1 f"]
    {
        assert_ne!(run(&place, command).await.0, 0, "{command}");
    }
    let metadata = std::fs::metadata(place.at("f")).unwrap();
    assert_eq!((std::fs::read(place.at("f")).unwrap(), metadata.permissions().mode() & 0o111), (b"x".to_vec(), 0));
    assert_ne!(metadata.uid(), 1);
}

#[tokio::test]
async fn there_is_no_network_and_no_socket_of_others() {
    for sandbox in [Sandbox::WorkspaceWrite, Sandbox::ReadOnly] {
        let Some((place, _outside)) = confined(sandbox) else { return };
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let _stream = UnixListener::bind(place.at("stream")).unwrap();
        let datagram = UnixDatagram::bind(place.at("datagram")).unwrap();
        datagram.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        let (tcp, udp_port) = (tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port());
        let python = |code: &str| format!("python3 -c 'from socket import *\n{code}'");
        for command in [
            format!("exec 3<>/dev/tcp/127.0.0.1/{tcp}"),
            format!("echo x > /dev/udp/127.0.0.1/{udp_port}"),
            python(&format!("socket(AF_INET, SOCK_DGRAM).sendto(b\"x\", (\"127.0.0.1\", {udp_port}))")),
            python(&format!("socket(AF_INET6).connect((\"::1\", {tcp}))")),
            python("socket(AF_INET).bind((\"127.0.0.1\", 0))"),
            python("socket(AF_NETLINK, SOCK_RAW)"),
            python("socket(AF_INET, SOCK_RAW, 1)"),
            python("socket(AF_UNIX).connect(\"stream\")"),
            python("socket(AF_UNIX, SOCK_DGRAM).sendto(b\"x\", \"datagram\")"),
            python("socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC).sendmsg([b\"x\"], [], 0, \"datagram\")"),
            python("socket(AF_UNIX, SOCK_SEQPACKET).connect(\"stream\")"),
        ] {
            let (code, output) = run(&place, &command).await;
            assert_ne!(code, 0, "{sandbox}: {command}: {output}");
            assert!(output.contains("not permitted") || output.contains("denied"), "{sandbox}: {command}: {output}");
        }
        let mut bytes = [0; 1];
        assert!(datagram.recv(&mut bytes).is_err() && udp.recv(&mut bytes).is_err());
    }
}

#[tokio::test]
async fn processes_outside_are_out_of_reach() {
    let Some((place, _outside)) = confined(Sandbox::WorkspaceWrite) else { return };
    let other = std::process::Command::new("sleep").arg("987").env("SECRET", "4711").spawn().unwrap();
    let mut other = Ended(other);
    let id = other.0.id();
    for command in [
        format!("kill -9 {id}"),
        format!("kill -9 {}", std::process::id()),
        format!("cat /proc/{id}/environ"),
        format!("echo x > /proc/{id}/mem"),
        format!("ls -l /proc/{id}/fd/ && cat /proc/{id}/root/etc/hostname"),
    ] {
        let (code, output) = run(&place, &command).await;
        assert!(code != 0 && !output.contains("4711"), "{command}: {output}");
    }
    assert!(matches!(other.0.try_wait(), Ok(None)));
}

/// A process that does not outlive its test, whatever becomes of it.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn root_is_not_almighty() {
    let Some((place, _outside)) = confined(Sandbox::WorkspaceWrite) else { return };
    for command in [
        "mknod disk b 8 0",
        "mknod tty c 5 0",
        "mount --bind / .",
        "mount -t tmpfs x .",
        "chroot /",
        "dmesg > log",
        "date -s 2001-01-01",
        "echo 1 > /proc/sys/kernel/sysrq",
        "bash -c 'grep CapBnd /proc/self/status | grep -q ffff'",
    ] {
        let (code, output) = run(&place, command).await;
        assert_ne!(code, 0, "{command}: {output}");
    }
}

#[tokio::test]
async fn the_daemon_itself_stays_free() {
    let Some((place, outside)) = confined(Sandbox::ReadOnly) else { return };
    run(&place, "true").await;
    std::fs::write(outside.path().join("victim"), "changed").unwrap();
    tokio::task::spawn_blocking(move || std::fs::write(outside.path().join("new"), "x").unwrap()).await.unwrap();
    std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // And what it confined can still be ended.
    let output = run_command("sleep 987", Some(std::time::Duration::from_millis(100)), &place.context).await.unwrap();
    assert!(output.timed_out);
}

#[test]
fn names_and_hints() {
    for sandbox in [Sandbox::Off, Sandbox::WorkspaceWrite, Sandbox::ReadOnly] {
        assert_eq!(sandbox.to_string().parse::<Sandbox>().unwrap(), sandbox);
        assert_eq!(sandbox.hint().is_none(), sandbox == Sandbox::Off);
    }
    let error = "on".parse::<Sandbox>().unwrap_err().to_string();
    assert!(error.contains("\"on\"") && error.contains("workspace-write"), "{error}");
    assert!(Sandbox::Off.gaps().unwrap().is_empty());
}
