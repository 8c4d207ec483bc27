//! The only source of time and of randomness: both are passed in.

use chrono::{DateTime, SecondsFormat, Utc};

pub trait Clock: Send + Sync + 'static {
    /// Unix time in milliseconds.
    fn now_ms(&self) -> u64;

    /// 128 random bits.
    fn random(&self) -> u128;
}

/// The machine's clock and randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        u64::try_from(Utc::now().timestamp_millis()).unwrap_or_default()
    }

    fn random(&self) -> u128 {
        uuid::Uuid::new_v4().as_u128()
    }
}

/// RFC 3339 in UTC with milliseconds, as everywhere on the wire and in files.
pub fn rfc3339(ms: u64) -> String {
    i64::try_from(ms)
        .ok()
        .and_then(DateTime::<Utc>::from_timestamp_millis)
        .unwrap_or_default()
        .to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Unix ms of a timestamp that another program may have written.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    u64::try_from(DateTime::parse_from_rfc3339(text).ok()?.timestamp_millis()).ok()
}

/// A new session id: a UUIDv7, whose beginning is its time and whose end is random.
pub fn session_id(clock: &dyn Clock) -> String {
    uuid::Builder::from_unix_timestamp_millis(clock.now_ms(), &{
        let mut bytes = [0u8; 10];
        bytes.copy_from_slice(&clock.random().to_le_bytes()[..10]);
        bytes
    })
    .into_uuid()
    .to_string()
}

/// A short random id with a prefix, such as `run_1f0c9a…`.
pub fn short_id(clock: &dyn Clock, prefix: &str) -> String {
    format!("{prefix}_{:012x}", clock.random() & 0xffff_ffff_ffff)
}
