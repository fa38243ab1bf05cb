//! Which source gets how many of the free slots: in proportion to the weights, counted in slots.
//!
//! This is stride scheduling. Each source has a position; a slot moves it on by `1 / weight`, and the next slot goes to the
//! source that is furthest behind.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// What a slot moves a source of weight 1 on by.
const STEP: u128 = 1 << 64;
/// How many slots a source that could not ask for a while may catch up on.
const BEHIND: u128 = 8;

/// How far a source is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Position(u128);

impl Position {
    /// Slots that were asked for and stay empty: they did not count.
    pub(crate) fn refund(&mut self, slots: usize, weight: u32) {
        self.0 = self.0.saturating_sub(step(weight) * slots as u128);
    }
}

/// A source that would claim.
pub(super) struct Wish {
    pub(super) source: usize,
    pub(super) weight: u32,
    pub(super) position: Position,
    /// The most that it asks for.
    pub(super) most: usize,
    /// Whether the slots that it asks for are kept free for it.
    pub(super) firm: bool,
}

/// Shares slots out.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// How far the source was that got the last slot.
    now: u128,
}

impl Sharing {
    /// Gives up to `free` slots to these, and moves them on. How many each source gets, if any.
    pub(super) fn share(&mut self, free: usize, wishes: &mut [Wish]) -> BTreeMap<usize, usize> {
        let mut shares = BTreeMap::new();
        let mut turns = BinaryHeap::new();
        for (place, wish) in wishes.iter_mut().enumerate() {
            let behind = self.now.saturating_sub(step(wish.weight) * BEHIND);
            wish.position.0 = wish.position.0.max(behind);
            turns.push(Reverse((wish.position.0, place)));
        }
        let mut left = free;
        while left > 0
            && let Some(Reverse((position, place))) = turns.pop()
        {
            let wish = &mut wishes[place];
            let share: &mut usize = shares.entry(wish.source).or_default();
            *share += 1;
            wish.position.0 = position + step(wish.weight);
            self.now = self.now.max(position);
            left -= usize::from(wish.firm);
            if *share < wish.most {
                turns.push(Reverse((wish.position.0, place)));
            }
        }
        shares
    }
}

fn step(weight: u32) -> u128 {
    STEP / u128::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(source: usize, weight: u32, most: usize) -> Wish {
        Wish { source, weight, position: Position::default(), most, firm: true }
    }

    #[test]
    fn slots_are_in_proportion_to_weights_whether_they_come_together_or_one_by_one() {
        for free in [1, 2, 3, 4, 7, 100, 999] {
            let (mut sharing, mut given) = (Sharing::default(), [0, 0, 0]);
            let mut wishes = [wish(0, 3, usize::MAX), wish(1, 1, usize::MAX), wish(2, 10, usize::MAX)];
            let rounds = 14_000 / free;
            for _ in 0..rounds {
                for (source, share) in sharing.share(free, &mut wishes) {
                    given[source] += share;
                }
            }
            let all = (rounds * free) as f64;
            for (source, weight) in [(0, 3.0), (1, 1.0), (2, 10.0)] {
                let wanted = all * weight / 14.0;
                assert!((given[source] as f64 - wanted).abs() < 20.0, "{free}: {given:?} of {all}");
            }
        }
    }

    #[test]
    fn what_one_cannot_use_the_others_get() {
        let mut wishes = [wish(0, 3, 5), wish(1, 1, usize::MAX)];
        let shares = Sharing::default().share(100, &mut wishes);
        assert_eq!(shares, BTreeMap::from([(0, 5), (1, 95)]));
    }

    #[test]
    fn slots_that_stay_empty_are_made_up_for() {
        let mut sharing = Sharing::default();
        let mut wishes = [wish(0, 1, usize::MAX), wish(1, 1, usize::MAX)];
        assert_eq!(sharing.share(10, &mut wishes), BTreeMap::from([(0, 5), (1, 5)]));
        wishes[0].position.refund(5, 1);
        // First come the five, then both in turns.
        assert_eq!(sharing.share(10, &mut wishes), BTreeMap::from([(0, 8), (1, 2)]));
    }

    #[test]
    fn one_that_comes_late_does_not_get_all_that_it_missed() {
        let (mut sharing, mut early) = (Sharing::default(), wish(0, 1, usize::MAX));
        for _ in 0..1000 {
            sharing.share(10, std::slice::from_mut(&mut early));
        }
        let mut both = [early, wish(1, 1, usize::MAX)];
        let shares = sharing.share(100, &mut both);
        // The eight that it may catch up on and the one that is next, then both in turns.
        assert_eq!(shares, BTreeMap::from([(0, 46), (1, 54)]));
    }

    #[test]
    fn a_claim_that_may_hang_takes_no_slot() {
        let mut wishes = [wish(0, 1, 1), wish(1, 1, usize::MAX)];
        wishes[0].firm = false;
        let shares = Sharing::default().share(1, &mut wishes);
        assert_eq!(shares, BTreeMap::from([(0, 1), (1, 1)]));
    }
}
