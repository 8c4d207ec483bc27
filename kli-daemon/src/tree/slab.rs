//! Fixed-size items of which the first may lie in a file that is mapped, and the rest grow in memory.

use bytemuck::{Pod, cast_slice, cast_slice_mut, try_cast_slice};
use memmap2::MmapMut;

/// From so many bytes on, memory is taken in large pages: a million rows would be 16,000 page faults.
const LARGE: usize = 4 << 20;
/// And up to here where items are put anywhere in it: a few in a table that was made too large would take all of it.
const SCATTERED: usize = 32 << 20;

pub struct Slab<T: Pod> {
    /// A file's bytes, whose changes stay in memory, or memory for what is to come; a whole number of items.
    mapped: Option<MmapMut>,
    /// Items in it.
    count: usize,
    grown: Vec<T>,
}

impl<T: Pod> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { mapped: None, count: 0, grown: Vec::new() }
    }
}

impl<T: Pod> From<Vec<T>> for Slab<T> {
    fn from(grown: Vec<T>) -> Slab<T> {
        Slab { mapped: None, count: 0, grown }
    }
}

/// A copy lies in memory.
impl<T: Pod> Clone for Slab<T> {
    fn clone(&self) -> Slab<T> {
        let mut grown: Vec<T> = self.mapped_items().to_vec();
        grown.extend_from_slice(&self.grown);
        Slab::from(grown)
    }
}

impl<T: Pod> std::fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} items", self.len())
    }
}

impl<T: Pod> Slab<T> {
    /// None where the bytes are no whole number of items.
    pub fn load(bytes: MmapMut) -> Option<Slab<T>> {
        let count = try_cast_slice::<u8, T>(&bytes).ok()?.len();
        Some(Slab { mapped: Some(bytes), count, grown: Vec::new() })
    }

    /// So many items of zeros.
    pub fn zeroed(count: usize) -> Slab<T> {
        match Self::room(count).filter(|room| room.len() <= SCATTERED) {
            Some(room) => Slab { mapped: Some(room), count, grown: Vec::new() },
            None => Slab::from(vec![T::zeroed(); count]),
        }
    }

    /// Takes memory for so many items in all, if it has none yet.
    pub fn reserve(&mut self, count: usize) {
        if self.is_empty() {
            self.mapped = Self::room(count);
        }
    }

    /// Memory that is zero; none for few items, or where the system gives none.
    fn room(count: usize) -> Option<MmapMut> {
        let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| *bytes >= LARGE)?;
        let map = MmapMut::map_anon(bytes).ok()?;
        // Only speed depends on it.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Some(map)
    }

    fn mapped_items(&self) -> &[T] {
        self.mapped.as_ref().map_or(&[], |bytes| cast_slice(bytes).get(..self.count).unwrap_or_default())
    }

    fn mapped_mut(&mut self, number: usize) -> Option<&mut T> {
        cast_slice_mut(self.mapped.as_mut()?).get_mut(number)
    }

    pub fn len(&self) -> usize {
        self.count + self.grown.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn get(&self, number: usize) -> Option<&T> {
        match number.checked_sub(self.count) {
            Some(number) => self.grown.get(number),
            None => self.mapped_items().get(number),
        }
    }

    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        match number.checked_sub(self.count) {
            Some(number) => self.grown.get_mut(number),
            None => self.mapped_mut(number),
        }
    }

    pub fn push(&mut self, item: T) {
        if self.grown.is_empty()
            && let Some(place) = self.mapped_mut(self.count)
        {
            *place = item;
            self.count += 1;
        } else {
            self.grown.push(item);
        }
    }

    pub fn truncate(&mut self, len: usize) {
        self.count = self.count.min(len);
        self.grown.truncate(len.saturating_sub(self.count));
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.mapped_items().iter().chain(&self.grown)
    }

    /// As of a slice: the items must be sorted by it.
    pub fn partition_point(&self, is: impl Fn(&T) -> bool) -> usize {
        match self.mapped_items().partition_point(&is) {
            all if all == self.count => all + self.grown.partition_point(&is),
            some => some,
        }
    }

    /// To be written, one part after the other.
    pub fn bytes(&self) -> [&[u8]; 2] {
        [cast_slice(self.mapped_items()), cast_slice(&self.grown)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever memory there is for it.
    #[test]
    fn items_stay_where_they_were_put() {
        for room in [0, LARGE / 8, LARGE / 8 + 100] {
            let mut slab = Slab::<u64>::default();
            slab.reserve(room);
            let all = LARGE as u64 / 8 + 50;
            (0..all).for_each(|n| slab.push(n));
            *slab.get_mut(7).unwrap() = 70;
            assert_eq!((slab.len() as u64, slab.get(7), slab.get(all as usize)), (all, Some(&70), None));
            assert!(slab.iter().copied().eq((0..all).map(|n| if n == 7 { 70 } else { n })));
            assert_eq!(slab.partition_point(|n| *n < 5), 5);
            slab.truncate(9);
            slab.push(90);
            assert!(slab.iter().rev().take(2).eq(&[90, 8]), "{room}");
            assert_eq!(slab.clone().bytes().concat(), slab.bytes().concat());
        }
    }
}
