//! Fixed-size items of which the first may lie in a file that is mapped, and the rest grow in memory.

use bytemuck::{Pod, cast_slice, cast_slice_mut, try_cast_slice};

/// Bytes that were loaded and may be changed; changes stay in memory.
pub trait Loaded: AsRef<[u8]> + AsMut<[u8]> + Send + Sync {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send + Sync> Loaded for T {}

pub struct Slab<T: Pod> {
    loaded: Option<Box<dyn Loaded>>,
    count: usize,
    grown: Vec<T>,
}

impl<T: Pod> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { loaded: None, count: 0, grown: Vec::new() }
    }
}

impl<T: Pod> From<Vec<T>> for Slab<T> {
    fn from(grown: Vec<T>) -> Slab<T> {
        Slab { loaded: None, count: 0, grown }
    }
}

/// A copy lies in memory.
impl<T: Pod> Clone for Slab<T> {
    fn clone(&self) -> Slab<T> {
        let mut grown: Vec<T> = self.loaded_items().to_vec();
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
    /// None where the bytes are no whole number of items, or lie where items cannot.
    pub fn load(bytes: Box<dyn Loaded>) -> Option<Slab<T>> {
        let count = try_cast_slice::<u8, T>((*bytes).as_ref()).ok()?.len();
        Some(Slab { loaded: Some(bytes), count, grown: Vec::new() })
    }

    fn loaded_items(&self) -> &[T] {
        self.loaded.as_ref().map_or(&[], |bytes| cast_slice((**bytes).as_ref()).get(..self.count).unwrap_or_default())
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
            None => self.loaded_items().get(number),
        }
    }

    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        match (number.checked_sub(self.count), &mut self.loaded) {
            (Some(number), _) => self.grown.get_mut(number),
            (None, Some(bytes)) => cast_slice_mut((**bytes).as_mut()).get_mut(number),
            (None, None) => None,
        }
    }

    pub fn push(&mut self, item: T) {
        self.grown.push(item);
    }

    pub fn truncate(&mut self, len: usize) {
        self.count = self.count.min(len);
        self.grown.truncate(len.saturating_sub(self.count));
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.loaded_items().iter().chain(&self.grown)
    }

    /// As of a slice: the items must be sorted by it.
    pub fn partition_point(&self, is: impl Fn(&T) -> bool) -> usize {
        match self.loaded_items().partition_point(&is) {
            all if all == self.count => all + self.grown.partition_point(&is),
            some => some,
        }
    }

    /// To be written, one part after the other.
    pub fn bytes(&self) -> [&[u8]; 2] {
        [cast_slice(self.loaded_items()), cast_slice(&self.grown)]
    }
}
