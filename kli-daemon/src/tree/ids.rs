//! Ids in little space: 8 hex digits are a number, other ids lie behind each other in one buffer; and a hash table
//! of row numbers that can be stored as it is.

use std::fmt;

use super::Slab;

/// An id, to compare and to hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id<'a> {
    Hex(u32),
    Text(&'a str),
}

impl<'a> Id<'a> {
    pub fn of(id: &'a str) -> Id<'a> {
        match hex(id.as_bytes()) {
            Some(n) => Id::Hex(n),
            None => Id::Text(id),
        }
    }

    pub fn hash(self) -> u32 {
        let mixed = match self {
            Id::Hex(n) => n,
            Id::Text(text) => text.bytes().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193)),
        };
        // The finaliser of MurmurHash3: ids that count up must not cluster.
        let mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85eb_ca6b);
        let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
        mixed ^ (mixed >> 16)
    }
}

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Hex(n) => write!(f, "{n:08x}"),
            Id::Text(text) => f.write_str(text),
        }
    }
}

/// The value of a lower-case hex digit, else 0xff.
const DIGITS: [u8; 256] = {
    let mut digits = [0xff; 256];
    let mut n = 0;
    while n < 16 {
        digits[b"0123456789abcdef"[n] as usize] = n as u8;
        n += 1;
    }
    digits
};

/// Exactly 8 lower-case hex digits as a number.
pub fn hex(id: &[u8]) -> Option<u32> {
    let id: &[u8; 8] = id.try_into().ok()?;
    let mut number = 0;
    let mut odd = 0;
    for byte in id {
        let digit = DIGITS[usize::from(*byte)];
        odd |= digit;
        number = number << 4 | u32::from(digit & 0xf);
    }
    (odd < 16).then_some(number)
}

pub fn hex_begins_with(n: u32, beginning: &str) -> bool {
    let digits = beginning.len();
    if digits > 8 {
        return false;
    }
    // Padded with zeros the beginning is an 8-digit number whose upper digits must agree.
    let mut padded = *b"00000000";
    for (to, from) in padded.iter_mut().zip(beginning.bytes()) {
        *to = from;
    }
    let shift = 32 - 4 * digits as u32;
    hex(&padded).is_some_and(|wanted| (n ^ wanted).checked_shr(shift).unwrap_or(0) == 0)
}

/// Puts a foreign id into the buffer; where it lies.
pub fn store(buffer: &mut Vec<u8>, id: &str) -> Option<u32> {
    let at = u32::try_from(buffer.len()).ok()?;
    let len = u32::try_from(id.len()).ok()?;
    buffer.extend_from_slice(&len.to_le_bytes());
    buffer.extend_from_slice(id.as_bytes());
    Some(at)
}

/// The foreign id that lies at `at`.
pub fn stored(buffer: &[u8], at: u32) -> &str {
    let read = || {
        let rest = buffer.get(at as usize..)?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        std::str::from_utf8(rest.get(..u32::from_le_bytes(*len) as usize)?).ok()
    };
    read().unwrap_or_default()
}

/// Open addressing over row numbers. A slot holds the number + 1, and above it what of the hash does not say where the
/// slot is: rows of other ids are hardly ever looked at, which lie far apart.
#[derive(Clone, Debug, Default)]
pub struct IdTable {
    slots: Slab<u32>,
    used: usize,
}

impl IdTable {
    /// As it was stored, with so many rows in it.
    pub fn load(slots: Slab<u32>, used: usize) -> IdTable {
        // A size that is no power of two was not stored by us: none is found then.
        let slots = if slots.len().is_power_of_two() { slots } else { Slab::default() };
        IdTable { slots, used }
    }

    /// To be stored.
    pub fn slots(&self) -> [&[u8]; 2] {
        self.slots.bytes()
    }

    /// The bits of a slot that are a number: as many as say where a slot is, since there are more slots than numbers.
    fn bits(&self) -> u32 {
        self.slots.len().trailing_zeros()
    }

    /// The row number among those of this hash for which `is` holds.
    pub fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.look(hash, is).ok()
    }

    /// As `find`, or else the slot where such a row would be put (none fits where the table is empty).
    #[inline]
    pub fn look(&self, hash: u32, is: impl Fn(u32) -> bool) -> Result<u32, usize> {
        let Some(mask) = self.slots.len().checked_sub(1) else { return Err(usize::MAX) };
        let bits = self.bits();
        let tag = hash.checked_shr(bits).unwrap_or(0);
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots.get(at).copied().unwrap_or(0);
            let Some(number) = (slot & mask as u32).checked_sub(1) else { return Err(at) };
            if slot.checked_shr(bits).unwrap_or(0) == tag && is(number) {
                return Ok(number);
            }
            at = (at + 1) & mask;
        }
    }

    /// What lies in the first slot of this hash.
    pub fn first(&self, hash: u32) -> Option<u32> {
        let mask = self.slots.len().checked_sub(1)?;
        self.slots.get(hash as usize & mask).copied()
    }

    /// Makes room for so many rows in all.
    pub fn reserve(&mut self, rows: usize, hash_of: impl Fn(u32) -> u32) {
        let slots = (rows * 2).next_power_of_two();
        if slots > self.slots.len() {
            self.grow(slots, hash_of);
        }
    }

    fn grow(&mut self, slots: usize, hash_of: impl Fn(u32) -> u32) {
        let mask = self.slots.len().saturating_sub(1) as u32;
        let old = std::mem::replace(&mut self.slots, Slab::zeroed(slots));
        self.used = 0;
        for slot in old.iter().filter(|slot| **slot != 0) {
            let number = (slot & mask).saturating_sub(1);
            self.put(hash_of(number), number);
        }
    }

    /// Makes room for one more; `hash_of` a row number that is already in.
    pub fn grow_for_one(&mut self, hash_of: impl Fn(u32) -> u32) {
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow((self.slots.len() * 2).max(8), hash_of);
        }
    }

    /// Puts a number into a slot that `look` found; there must be room for it.
    pub fn fill(&mut self, slot: usize, hash: u32, number: u32) {
        let tag = hash.checked_shr(self.bits()).unwrap_or(0).checked_shl(self.bits()).unwrap_or(0);
        if let Some(place) = self.slots.get_mut(slot) {
            *place = tag | (number + 1);
            self.used += 1;
        }
    }

    pub fn put(&mut self, hash: u32, number: u32) {
        if let Err(slot) = self.look(hash, |_| false) {
            self.fill(slot, hash, number);
        }
    }

    pub fn bytes(&self) -> usize {
        self.slots.len() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number is found by its hash, whatever else has the same one, at any size.
    #[test]
    fn a_table_finds_what_was_put_in() {
        for few in [1u32, 7, u32::MAX] {
            let mut table = IdTable::default();
            let hash = |number: u32| Id::Hex(number % few).hash();
            for number in 0..3_000 {
                table.grow_for_one(hash);
                table.put(hash(number), number);
                for old in [0, number / 2, number] {
                    assert_eq!(table.find(hash(old), |n| n == old), Some(old), "{few} {number}");
                }
                assert_eq!(table.find(hash(number), |_| false), None);
            }
            let stored = IdTable::load(table.slots.iter().copied().collect::<Vec<_>>().into(), 3_000);
            assert_eq!(stored.find(hash(77), |n| n == 77), Some(77));
        }
    }
}
