//! A client of kli-daemon, as a library: what the `kli` command is made of, and what any other Rust program may use.
//!
//! * [`Client`]: typed calls over the socket, which it finds, and behind which it starts the daemon if none runs
//! * [`EventStream`]: the events of a session, once each, through lost connections and restarts
//! * [`Connector`], [`socket`]: where the daemon is and how to reach it: a path, or another machine over ssh
//!
//! ```no_run
//! # async fn example() -> Result<(), kli_client::CallError> {
//! use kli_client::{Client, Connector, api};
//!
//! let client = Client::connect(Connector::local(None)?).await?;
//! let session = client
//!     .call::<api::CreateSession>(api::CreateSessionParams { work_dir: "/tmp".into(), ..Default::default() })
//!     .await?;
//! let mut events = client.events(&session.session_id);
//! let prompt = api::PromptParams { session_id: session.session_id, text: "hi".into(), ..Default::default() };
//! client.call::<api::Prompt>(prompt).await?;
//! while !matches!(events.next().await?.event.body, api::EventBody::RunEnd { .. }) {}
//! # Ok(())
//! # }
//! ```
//!
//! It knows nothing of how the daemon works, and nothing of terminals.

mod client;
mod connection;
mod connector;
mod error;
mod events;
#[cfg(test)]
mod fake;
pub mod socket;
mod start;
#[cfg(test)]
mod tests;
mod wire;

pub use client::{Client, Subscription};
pub use connector::Connector;
pub use error::{CallError, ConnectError};
pub use events::{EventStream, Received, Step};
pub use kli_protocol::{self as protocol, ApiError, ErrorKind, api};
