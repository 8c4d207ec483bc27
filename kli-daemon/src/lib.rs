//! kli-daemon: owns every AI-agent session tree and runs the agent loops, behind one Unix socket.
//!
//! Layers; a module may use those below it and never one above (`tests/tests/layers.rs` reads every `use`):
//!
//! ```text
//! 5  daemon (composition root: build, start, stop order) · config · lock · telemetry
//! 4  rpc        listener → connection (framing, limits) → methods/*     knows: session handles, protocol
//! 3  session    registry → handle → actor (state, hub)                  where tree, store and agent meet
//! 2  agent (run, step, approvals) · compaction                          knows: Provider, Tool, RunHost
//! 1  provider · tool · mcp · store · workspace                          the only leaves that touch the world
//! 0  tree · context · dialect · sse · clock · text                      pure, synchronous
//! ```
//!
//! One way round: connection → method → session mailbox → serialise → append → apply → publish → answer. A run
//! is a child of its session's actor and speaks to it only by messages.

// Layer 0
pub mod clock;
pub mod context;
pub mod dialect;
pub mod sse;
pub mod text;
pub mod tree;
// Layer 1
pub mod mcp;
pub mod provider;
pub mod store;
pub mod tool;
pub mod workspace;
// Layer 2
pub mod agent;
pub mod compaction;
// Layer 3
pub mod session;
// Layer 4
pub mod rpc;
// Layer 5
pub mod config;
pub mod daemon;
pub mod lock;
pub mod telemetry;
