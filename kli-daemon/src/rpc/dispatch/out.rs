//! What is to be sent on a connection and was not yet taken.

/// Bytes to be sent.
#[derive(Debug, Default)]
pub(in crate::rpc) struct Out {
    pub(super) bytes: Vec<u8>,
    sent: usize,
}

/// An empty buffer above this is given back.
const KEPT_CAPACITY: usize = 512 << 10;

impl Out {
    pub(in crate::rpc) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(in crate::rpc) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(in crate::rpc) fn unsent(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    pub(in crate::rpc) fn advance(&mut self, sent: usize) {
        self.sent += sent;
        if self.is_empty() {
            if self.bytes.capacity() > KEPT_CAPACITY {
                self.bytes = Vec::new();
            }
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}
