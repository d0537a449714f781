//! The range of addresses that a region occupies, published to threads that do not hold the region's lock. Nothing is mapped here.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A word that threads share: an atomic one in programs; the model below says what threads may see of it.
pub(super) trait Word {
    fn load(&self, ordering: Ordering) -> usize;
    fn store(&self, value: usize, ordering: Ordering);
}

impl Word for AtomicUsize {
    fn load(&self, ordering: Ordering) -> usize {
        Self::load(self, ordering)
    }

    fn store(&self, value: usize, ordering: Ordering) {
        Self::store(self, value, ordering);
    }
}

/// A range that is nothing until it is published, once.
///
/// `start` is the one publication: it is stored last and loaded first, so that whoever sees it sees the `end` that belongs to it. The other
/// way round a thread could pair the old start, 0, with the new end, and take every address below the region for one of its blocks.
pub(super) struct AddressRange<W = AtomicUsize> {
    start: W,
    end: W,
}

impl AddressRange {
    pub const fn new() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }
}

impl<W: Word> AddressRange<W> {
    /// Makes the range `start..end` known. Called once, with a start above 0.
    pub fn publish(&self, start: usize, end: usize) {
        self.end.store(end, Ordering::Relaxed);
        self.start.store(start, Ordering::Release);
    }

    /// Where the range starts; `None` until it is published.
    pub fn start(&self) -> Option<usize> {
        Some(self.start.load(Ordering::Acquire)).filter(|start| *start > 0)
    }

    /// How far `address` lies from the start, if it lies in the range. A thread that was given an address of the range learned of it after
    /// the range was published, and so finds it here.
    pub fn offset(&self, address: usize) -> Option<usize> {
        let start = self.start()?;
        // The load of `start` has acquired what was stored before it.
        let end = self.end.load(Ordering::Relaxed);
        (start..end).contains(&address).then(|| address - start)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// A store of the publishing thread.
    #[derive(Clone, Copy)]
    struct Store {
        word: usize,
        value: usize,
        releases: bool,
    }

    /// What a second thread may see of the stores of a first one: every load either sees the store to its word or, unless the thread has
    /// acquired something that was released after that store, does not. `choices` decides, one bit a load.
    #[derive(Default)]
    struct Memory {
        stores: Vec<Store>,
        /// Stores before this one must be seen, and single ones that were seen.
        acquired: usize,
        seen: Vec<usize>,
        choices: u32,
        loads: u32,
    }

    #[derive(Clone)]
    struct Modelled {
        word: usize,
        memory: Rc<RefCell<Memory>>,
    }

    impl Word for Modelled {
        fn load(&self, ordering: Ordering) -> usize {
            let memory = &mut *self.memory.borrow_mut();
            let chosen = memory.choices >> memory.loads & 1 == 1;
            memory.loads += 1;
            let Some((index, store)) = memory.stores.iter().copied().enumerate().find(|(_, s)| s.word == self.word)
            else {
                return 0;
            };
            if !(chosen || index < memory.acquired || memory.seen.contains(&index)) {
                return 0;
            }
            memory.seen.push(index);
            if store.releases && ordering == Ordering::Acquire {
                memory.acquired = memory.acquired.max(index);
            }
            store.value
        }

        fn store(&self, value: usize, ordering: Ordering) {
            let releases = ordering == Ordering::Release;
            self.memory.borrow_mut().stores.push(Store { word: self.word, value, releases });
        }
    }

    #[test]
    fn no_interleaving_takes_a_foreign_address_for_one_of_the_range() {
        let (below, inside, above) = (40, 120, 200);
        let mut found = Vec::new();
        for choices in 0..1 << 4 {
            let of_address = [below, inside, above].map(|address| {
                let memory = Rc::new(RefCell::new(Memory { choices, ..Memory::default() }));
                let word = |word| Modelled { word, memory: Rc::clone(&memory) };
                let range = AddressRange { start: word(0), end: word(1) };
                range.publish(100, 150);
                range.offset(address)
            });
            assert_eq!((of_address[0], of_address[2]), (None, None), "choices {choices:b}");
            found.push(of_address[1]);
        }
        // Before the range is seen nothing is in it, after that what belongs to it.
        assert!(found.contains(&None) && found.contains(&Some(20)));
        assert!(found.iter().flatten().all(|offset| *offset == 20));
    }

    #[test]
    fn nothing_lies_in_a_range_that_is_not_published() {
        let range = AddressRange::new();
        assert_eq!((range.start(), range.offset(0), range.offset(1)), (None, None, None));
        range.publish(8, 16);
        assert_eq!(
            (range.offset(7), range.offset(8), range.offset(15), range.offset(16)),
            (None, Some(0), Some(7), None)
        );
    }
}
