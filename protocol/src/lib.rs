//! What the daemon and its clients say to each other, and what a session file holds.
//!
//! * [`record`]: the lines of a session file, which are also the `Entry` of the wire
//! * [`api`]: every method and event, once: name, parameters, result. The daemon's registration, the typed
//!   client and the OpenRPC document all follow from it
//! * [`rpc`]: JSON-RPC 2.0 messages; [`frame`]: how they are cut from a byte stream
//! * [`error`]: the application errors, their codes and kinds
//! * [`paths`]: where the two meet
//! * [`surrogates`]: half characters that others write
//!
//! No I/O and no runtime here: this crate is data, and pure functions over it.

pub mod api;
pub mod error;
pub mod frame;
pub mod paths;
pub mod record;
pub mod rpc;
pub mod surrogates;

pub use api::{Method, decode_params};
pub use error::{ApiError, ErrorKind};

/// The number that `ping` and `initialize` give; it changes only when something here stops being understood.
pub const PROTOCOL_VERSION: u32 = 1;

/// The longest message that a peer may send, unless configured otherwise (bytes).
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 16 << 20;
