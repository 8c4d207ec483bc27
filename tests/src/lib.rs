//! The harness of the integration tests: the real daemon and the real `kli` in a place of their own, a client
//! that knows nothing of our types, and a model server that plays scripts and refuses what a strict provider
//! would refuse.
//!
//! Tests here see the product from outside, over its socket and its files; what can fail at a lower level is
//! tested there. Nothing in here waits for a fixed time: a wait ends by the thing waited for or by [`PATIENCE`].
//! Everything is blocking and threads, so that a test reads from top to bottom.

mod binary;
mod client;
mod daemon;
pub mod fixtures;
mod gate;
pub mod model;
mod place;
pub mod process;
mod random;
pub mod raw;
pub mod schema;
mod session;

pub use client::{Client, Event, RpcError};
pub use daemon::{Daemon, Finished, Setup, finish};
pub use gate::Gate;
pub use model::{ModelServer, Reply};
pub use place::Place;
pub use random::Random;
pub use session::{Session, is_node, text, text_of};

use std::time::Duration;

/// How long anything may take before a test fails. Long, since test machines are slow and busy; checks of speed
/// say their own limits.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The milliseconds that something took, beside what it gave.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = std::time::Instant::now();
    let value = work();
    (value, start.elapsed())
}

/// Waits for what gives no signal: another process's end, a file of its making. False when it did not come.
pub fn poll(patience: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = std::time::Instant::now() + patience;
    while !done() {
        if std::time::Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}
