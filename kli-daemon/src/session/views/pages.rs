//! Pages: a number of items, and never more than 8 MiB.

use kli_protocol::ApiError;

use crate::store::Ix;

/// Items of a page unless asked otherwise.
pub const PAGE: usize = 1000;
/// The most that may be asked for.
const MAX_PAGE: usize = 10_000;
/// A page ends before it is larger than this, unless one item alone is.
pub const PAGE_BYTES: usize = 8 << 20;

/// `limit` of a call.
pub fn page_limit(limit: Option<u64>, default: usize) -> Result<usize, ApiError> {
    match limit {
        None => Ok(default),
        Some(0) => Err(ApiError::invalid_params("limit: at least 1")),
        Some(n) => Ok(usize::try_from(n).unwrap_or(MAX_PAGE).min(MAX_PAGE)),
    }
}

/// A cursor that counts items.
pub fn page_offset(cursor: Option<&str>) -> Result<usize, ApiError> {
    match cursor {
        None => Ok(0),
        Some(text) => text.parse().map_err(|_| bad_cursor(text)),
    }
}

/// A cursor that names a record.
pub(super) fn position(cursor: Option<&str>) -> Result<Option<Ix>, ApiError> {
    match cursor {
        None => Ok(None),
        Some(text) => text.parse().map(|n| Some(Ix(n))).map_err(|_| bad_cursor(text)),
    }
}

pub(super) fn cursor_of(ix: Ix) -> String {
    ix.0.to_string()
}

fn bad_cursor(text: &str) -> ApiError {
    ApiError::invalid_params(format!("cursor: {text:?} is none that was given; begin without a cursor"))
}

/// A page that is being filled.
pub(super) struct Page<T> {
    items: Vec<T>,
    limit: usize,
    bytes: usize,
}

impl<T> Page<T> {
    pub fn new(limit: usize) -> Page<T> {
        Page { items: vec![], limit, bytes: 0 }
    }

    pub fn is_full(&self) -> bool {
        self.items.len() >= self.limit || (!self.items.is_empty() && self.bytes >= PAGE_BYTES)
    }

    /// Whether an item of this size still fits; one always does.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.items.is_empty() || self.bytes + bytes <= PAGE_BYTES
    }

    pub fn push(&mut self, bytes: usize, item: T) {
        self.bytes += bytes;
        self.items.push(item);
    }

    pub fn into_items(self) -> Vec<T> {
        self.items
    }
}
