//! What one client, and all of them together, may take of the daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use kli_protocol::DEFAULT_MAX_MESSAGE_BYTES;

/// Every bound of the socket. What happens at each is said beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A longer message gets -32600 `limitExceeded` and is passed over; the connection lives.
    pub max_message_bytes: usize,
    /// One more connection gets an error that says so, and is closed.
    pub max_connections: usize,
    /// Calls that wait for their answer on one connection. At the bound nothing more is read from it until one is
    /// answered; over WebSocket, where jsonrpsee reads on, a further call gets `limitExceeded`.
    pub max_in_flight: usize,
    /// The same in bytes of requests.
    pub max_in_flight_bytes: usize,
    /// Members of a batch. A longer one gets `limitExceeded` and none of it is carried out.
    pub max_batch: usize,
    /// Replies of one batch together. What goes beyond is replaced by `limitExceeded`.
    pub max_batch_reply_bytes: usize,
    /// Subscriptions of one connection, those of tools too. One more gets `limitExceeded`.
    pub max_subscriptions: usize,
    /// What is written and not yet taken by the client, in bytes. At the bound nothing more is read from that
    /// connection and its events are not pulled; calls already taken go on.
    pub out_bytes: usize,
    /// At this many bytes calls of that connection are no longer polled either, until the client reads.
    pub max_unread_bytes: usize,
    /// Messages that a WebSocket may be behind.
    pub websocket_queue: u32,
    /// How long replies in flight may take to go out when the daemon stops.
    pub drain: Duration,
    /// How long calls go on that a connection left behind when it died: what was sent is carried out.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            max_connections: 512,
            max_in_flight: 1024,
            max_in_flight_bytes: 4 * DEFAULT_MAX_MESSAGE_BYTES,
            max_batch: 1000,
            max_batch_reply_bytes: 4 * DEFAULT_MAX_MESSAGE_BYTES,
            max_subscriptions: 256,
            out_bytes: 256 << 10,
            max_unread_bytes: 4 * DEFAULT_MAX_MESSAGE_BYTES,
            websocket_queue: 32,
            drain: Duration::from_secs(2),
            linger: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Those that a client should know, as `initialize` gives them.
    pub fn named(&self) -> BTreeMap<String, u64> {
        [
            ("maxMessageBytes", self.max_message_bytes),
            ("maxConnections", self.max_connections),
            ("maxInFlight", self.max_in_flight),
            ("maxInFlightBytes", self.max_in_flight_bytes),
            ("maxBatch", self.max_batch),
            ("maxBatchReplyBytes", self.max_batch_reply_bytes),
            ("maxSubscriptions", self.max_subscriptions),
        ]
        .into_iter()
        .map(|(name, max)| (name.to_owned(), max as u64))
        .collect()
    }
}
