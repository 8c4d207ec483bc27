//! Cutting messages from a byte stream.
