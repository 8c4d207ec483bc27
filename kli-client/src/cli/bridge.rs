//! `kli bridge`: standard input and output joined to the daemon's socket, byte for byte, whatever the framing.
//!
//! It is what `ssh HOST kli bridge` runs on the other machine. Plain threads and blocking calls: there is nothing
//! to wait for at the same time but in the one direction that must notice that its reader has gone.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};

use super::Exit;
use super::args::Global;
use super::context::connector;

pub async fn run(global: &Global) -> anyhow::Result<Exit> {
    let socket = connector(global)?.socket_stream().await?.into_std()?;
    socket.set_nonblocking(false)?;
    let sender = socket.try_clone()?;
    // It ends with the process: a read of standard input cannot be called off.
    std::thread::spawn(move || {
        let _ = copy(&mut io::stdin().lock(), &mut &sender);
        // Calls in flight are still answered, and subscriptions go on.
        let _ = sender.shutdown(Shutdown::Write);
    });
    receive(socket)?;
    Ok(Exit::Done)
}

/// Copies what the daemon says until it ends, or until nobody reads our output any more.
fn receive(mut socket: UnixStream) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let (ready, gone) = {
            let mut fds =
                [PollFd::new(&socket, PollFlags::IN), PollFd::from_borrowed_fd(out.as_fd(), PollFlags::empty())];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let [from, to] = &fds;
            (!from.revents().is_empty(), to.revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL))
        };
        if gone {
            return Ok(());
        }
        if !ready {
            continue;
        }
        let n = socket.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        out.write_all(buffer.get(..n).unwrap_or_default())?;
        out.flush()?;
    }
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => to.write_all(buffer.get(..n).unwrap_or_default())?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
