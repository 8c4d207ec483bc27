use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::*;

#[test]
fn what_is_no_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _socket = UnixListener::bind(dir.path().join("socket")).unwrap();
    for (path, want) in [
        (fifo.clone(), "a named pipe"),
        (dir.path().join("socket"), "a socket"),
        ("/dev/zero".into(), "a device"),
        ("/dev/urandom".into(), "a device"),
        (dir.path().to_owned(), "a directory"),
        (dir.path().join("gone"), "no file"),
    ] {
        let error = open(&path).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(want), "{path:?}: {error}");
        let error = replace(&path, b"x", None).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(want) || want == "no file", "write {path:?}: {error}");
    }
    assert!(std::fs::symlink_metadata(fifo).unwrap().file_type().is_fifo());
}

#[test]
fn text_comes_back_byte_for_byte() {
    for bytes in [
        b"plain\r\n".as_slice(),
        b"",
        b"\xef\xbb\xbfbom",
        b"\xff\xfea\x00\n\x00",
        b"\xfe\xff\x00a\xd8\x3d\xde\x00",
        "中".as_bytes(),
    ] {
        let (text, encoding) = decode(bytes).unwrap();
        assert!(!text.starts_with('\u{feff}'));
        assert_eq!(encode(&text, encoding), bytes);
    }
    for bytes in [b"caf\xe9".as_slice(), b"\xff\xfea", b"\xff\xfe\x00\xd8", b"\xef\xbb\xbf\xff"] {
        assert_eq!(decode(bytes), None, "{bytes:?}");
    }
}

#[test]
fn links_modes_and_other_names_stay() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("script.sh"), "old").unwrap();
    std::fs::set_permissions(at("script.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("script.sh", at("link")).unwrap();
    symlink("link", at("link2")).unwrap();
    replace(&at("link2"), b"new", None).unwrap();
    assert_eq!(std::fs::read(at("script.sh")).unwrap(), b"new");
    assert_eq!(std::fs::metadata(at("script.sh")).unwrap().mode() & 0o7777, 0o755);
    assert!(std::fs::symlink_metadata(at("link2")).unwrap().is_symlink());

    std::fs::hard_link(at("script.sh"), at("hard")).unwrap();
    replace(&at("script.sh"), b"both", None).unwrap();
    assert_eq!(std::fs::read(at("hard")).unwrap(), b"both");

    symlink("made/by/link", at("dangling")).unwrap();
    replace(&at("dangling"), b"x", None).unwrap();
    assert_eq!(std::fs::read(at("made/by/link")).unwrap(), b"x");
    assert!(std::fs::symlink_metadata(at("dangling")).unwrap().is_symlink());

    symlink("loop", at("loop")).unwrap();
    assert!(replace(&at("loop"), b"x", None).is_err());

    replace(&at("new/file"), b"x", None).unwrap();
    let umask_free = std::fs::metadata(at("new/file")).unwrap().mode() & 0o777;
    assert_eq!(umask_free & 0o600, 0o600);
    assert!(
        std::fs::read_dir(dir.path()).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains(".tmp"))
    );
}

#[test]
fn read_only_and_changed_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, "old").unwrap();
    let seen = std::fs::metadata(&path).unwrap();
    std::fs::write(&path, "other").unwrap();
    assert!(matches!(replace(&path, b"x", Some(&seen)), Err(FileError::Changed(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"other");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    let error = replace(&path, b"x", None).unwrap_err().to_string();
    assert!(error.contains("read-only (mode 0444)"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"other");
}

#[tokio::test]
async fn one_call_at_a_time_writes_a_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "").unwrap();
    symlink("f", dir.path().join("link")).unwrap();
    let first = queue_up(&dir.path().join("f")).await;
    queue_up(&dir.path().join("g")).await;
    let (second, given_up, third) =
        (queue_up(&dir.path().join("link")), queue_up(&dir.path().join("f")), queue_up(&dir.path().join("f")));
    tokio::pin!(second, third);
    assert!(futures_util::poll!(&mut third).is_pending() && futures_util::poll!(&mut second).is_pending());
    drop(first);
    drop(given_up);
    assert!(futures_util::poll!(&mut third).is_pending(), "it came later, though it was polled first");
    drop(second.await);
    third.await;
}
