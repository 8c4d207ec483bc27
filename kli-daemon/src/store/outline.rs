//! A session's tree at one moment, as arrays: for questions about all of it, which would take too long row by row.

use kli_protocol::record::Kind;

use super::log::Log;
use super::{Ix, Role};
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
        let (mut outline, mut depths) = Outline::shared(log, forward);
        let end = log.end().0;
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
    ///
    /// `forward`: records may lie before their parents; then their depths come too, for an order of parents first.
    fn shared(log: &Log, forward: bool) -> (Outline, Vec<u32>) {
        let mut chain = shared_branch(log);
        let mut outline = Outline { shared: Vec::new(), start: log.start, spots: Vec::new(), order: None };
        let mut above = NONE;
        for link in &mut chain {
            link.parent = above;
            if !link.kind.is_mark() {
                above = link.ix;
            }
        }
        let mut depths: Vec<u32> = Vec::new();
        if forward {
            depths.extend(1..=chain.len() as u32);
            depths.sort_by_key(|depth| chain.get(*depth as usize - 1).map(|link| link.ix));
            chain.sort_unstable_by_key(|link| link.ix);
        }
        outline.shared = chain.iter().map(|link| link.ix).collect();
        outline.spots.reserve_exact(chain.len() + log.end().0.saturating_sub(log.start) as usize);
        for (number, link) in chain.iter().enumerate() {
            let near = number.checked_sub(1).filter(|near| outline.shared.get(*near) == Some(&link.parent));
            let place = near.map(|near| near as u32).or_else(|| outline.place(Ix(link.parent)));
            let parent = place.unwrap_or(Self::NOWHERE);
            outline.spots.push(Spot { parent, kind: link.kind, role: link.role });
        }
        (outline, depths)
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

struct Link {
    ix: u32,
    parent: u32,
    kind: Kind,
    role: Option<Role>,
}

/// Root → the entry where the fork was made, marks included.
fn shared_branch(log: &Log) -> Vec<Link> {
    let mut chain = Vec::new();
    let Some(base) = &log.base else { return chain };
    chain.reserve_exact(log.depth(base.entry) as usize);
    let mut next = base.entry.0;
    while next != NONE {
        let before = chain.len();
        let state = log.owner(next).read();
        while chain.len() - before < ROWS as usize
            && let Some(row) = state.index.row(next)
        {
            chain.push(Link { ix: next, parent: NONE, kind: row.kind(), role: row.role() });
            next = row.parent;
        }
        if chain.len() == before {
            break;
        }
    }
    chain.reverse();
    chain
}

impl Log {
    pub fn outline(&self) -> Outline {
        Outline::new(self)
    }
}
