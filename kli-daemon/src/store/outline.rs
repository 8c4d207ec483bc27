//! A session's tree at one moment, as arrays: for questions about all of it, which would take too long row by row.

use kli_protocol::record::Kind;

use super::log::Log;
use super::{Ix, Node, Role};
use crate::tree::NONE;

/// Rows that are taken under one lock.
const ROWS: u32 = 64 * 1024;

/// The visible records in file order, each in a place of its own: first the shared branch, then the own records,
/// marks among them.
pub struct Outline {
    /// The shared branch, marks included, in file order.
    shared: Vec<u32>,
    /// The first own record.
    start: u32,
    spots: Vec<Spot>,
    /// Every record after its parent; none: as they lie.
    order: Option<Vec<u32>>,
}

/// A record of an outline.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// The place of the entry above, marks passed over; [`Outline::NOWHERE`] of a root.
    pub parent: u32,
    pub kind: Kind,
    pub role: Option<Role>,
}

impl Outline {
    /// No place.
    pub const NOWHERE: u32 = u32::MAX;

    fn new(log: &Log) -> Outline {
        let forward = log.chain().any(|log| log.read().index.has_forward_links());
        // For an order of parents first, where records lie before theirs.
        let mut depths = Vec::new();
        let mut outline = Outline::shared(log, &mut depths);
        let end = log.end().0;
        outline.spots.reserve_exact(end.saturating_sub(log.start) as usize);
        let mut next = log.start;
        while next < end {
            let state = log.read();
            let until = end.min(next.saturating_add(ROWS));
            for row in (next..until).map_while(|ix| state.index.row(ix)) {
                let parent = outline.place(Ix(row.tree_parent)).unwrap_or(Self::NOWHERE);
                outline.spots.push(Spot { parent, kind: row.kind(), role: row.role() });
                if forward {
                    depths.push(row.depth);
                }
            }
            next = until;
        }
        if forward {
            let mut order: Vec<u32> = (0..depths.len() as u32).collect();
            order.sort_by_key(|place| depths.get(*place as usize).copied());
            outline.order = Some(order);
        }
        outline
    }

    /// The shared branch alone. It is a chain, so that no row above need be asked for.
    fn shared(log: &Log, depths: &mut Vec<u32>) -> Outline {
        let branch = log.base.as_ref().map(|base| base.entry);
        let mut chain: Vec<(Node, u32, u32)> = log.up(branch).map(|node| (node, NONE, 0)).collect();
        chain.reverse();
        let mut above = NONE;
        for (number, (node, parent, depth)) in chain.iter_mut().enumerate() {
            (*parent, *depth) = (above, number as u32 + 1);
            if !node.kind.is_mark() {
                above = node.ix.0;
            }
        }
        if chain.windows(2).any(|pair| matches!(pair, [(a, ..), (b, ..)] if a.ix > b.ix)) {
            chain.sort_unstable_by_key(|(node, ..)| node.ix);
        }
        let mut outline = Outline { shared: Vec::new(), start: log.start, spots: Vec::new(), order: None };
        outline.shared = chain.iter().map(|(node, ..)| node.ix.0).collect();
        for (number, (node, parent, depth)) in chain.iter().enumerate() {
            let near = number.checked_sub(1).filter(|near| outline.shared.get(*near) == Some(parent));
            let place = near.map(|near| near as u32).or_else(|| outline.place(Ix(*parent)));
            let parent = place.unwrap_or(Self::NOWHERE);
            outline.spots.push(Spot { parent, kind: node.kind, role: node.role });
            depths.push(*depth);
        }
        outline
    }

    /// Where a record is; none: the session does not show it.
    pub fn place(&self, ix: Ix) -> Option<u32> {
        if ix.0 == NONE {
            return None;
        }
        match ix.0.checked_sub(self.start) {
            Some(own) => (self.shared.len() as u32).checked_add(own),
            None => self.shared.binary_search(&ix.0).ok().map(|at| at as u32),
        }
    }

    pub fn ix(&self, place: u32) -> Ix {
        let own = || self.start + place.saturating_sub(self.shared.len() as u32);
        Ix(self.shared.get(place as usize).copied().unwrap_or_else(own))
    }

    pub fn len(&self) -> usize {
        self.spots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    pub fn spot(&self, place: u32) -> Option<&Spot> {
        self.spots.get(place as usize)
    }

    /// Places of the entries (no marks), every one after its parent, and else in file order.
    pub fn entries(&self) -> impl Iterator<Item = (u32, &Spot)> {
        (0..self.spots.len() as u32).filter_map(|number| {
            let place = match &self.order {
                Some(order) => *order.get(number as usize)?,
                None => number,
            };
            let spot = self.spots.get(place as usize)?;
            (!spot.kind.is_mark()).then_some((place, spot))
        })
    }

    /// Whether `entries` gives them in file order.
    pub fn is_in_file_order(&self) -> bool {
        self.order.is_none()
    }
}

impl Log {
    pub fn outline(&self) -> Outline {
        Outline::new(self)
    }
}
