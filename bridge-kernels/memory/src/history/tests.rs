//! Tests of the recorded blocks of an allocator. The history belongs to the process, so one test
//! covers all of it.

use std::alloc::{GlobalAlloc, Layout};

use super::super::{LargeBlocks, SMALLEST};
use super::*;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 64).unwrap()
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn blocks_have_the_owners_of_their_time_and_windows_their_peak() {
    let allocator = LargeBlocks::new();
    // SAFETY: every block is freed once, with its layout.
    let take = |bytes: usize| unsafe { allocator.alloc(layout(bytes)) };
    // SAFETY: as above.
    let give = |block: *mut u8, bytes: usize| unsafe { allocator.dealloc(block, layout(bytes)) };
    let before = take(900_000);
    drop(RankSlot::owner(|| unreachable!("nothing is noted")));
    start(None);
    let (here, there) = (RankSlot::new(), RankSlot::new());
    assert_ne!(here, there);
    here.attach_thread();
    let owner = |name: &'static str| RankSlot::owner(move || name.to_owned());
    let weights = {
        let _owner = owner("weights");
        take(500_000)
    };
    let second = {
        let _owner = owner("setup");
        take(300_000)
    };
    assert_eq!(RankSlot::rename(&[(second.addr() + 299_999, "bias".to_owned()), (8, "nothing".to_owned())]), 1);
    RankSlot::begin_window();
    let elsewhere = std::thread::scope(|scope| {
        let work = || {
            there.attach_thread();
            let _owner = owner("another rank");
            take(2_000_000).expose_provenance()
        };
        scope.spawn(work).join().unwrap()
    });
    let forward = owner("forward");
    let small = take(SMALLEST - 1);
    let activation = take(1_000_000);
    let inner = owner("inner");
    let scratch = take(600_000);
    give(scratch, 600_000);
    drop(inner);
    let second_activation = take(100_000);
    give(activation, 1_000_000);
    drop(forward);
    // SAFETY: it has this layout, and is used no more.
    let grown = unsafe { allocator.realloc(second_activation, layout(100_000), 400_000) };
    give(before, 900_000);
    let window = RankSlot::end_window().unwrap();
    let owners = |blocks: &[WindowBlock]| blocks.iter().map(|b| (b.owner.clone(), b.bytes)).collect::<Vec<_>>();
    let named = |list: &[(&str, usize)]| list.iter().map(|(n, b)| ((*n).to_owned(), *b)).collect::<Vec<_>>();
    let mut at_start = owners(&window.at_start);
    at_start.sort();
    assert_eq!(at_start, named(&[("bias", 300_000), ("weights", 500_000)]));
    assert_eq!(window.peak_bytes, 500_000 + 300_000 + 1_000_000 + 600_000);
    let expected = [("forward", 1_000_000), ("inner", 600_000), ("weights", 500_000), ("bias", 300_000)];
    assert_eq!(owners(&window.at_peak), named(&expected));
    let totals = window.owners_at_peak();
    assert_eq!((totals[0].owner.as_str(), totals[0].blocks), ("forward", 1));
    let told: Vec<(String, usize, bool)> =
        window.events.iter().map(|e| (e.block.owner.clone(), e.block.bytes, e.is_taken)).collect();
    let event = |owner: &str, bytes, is_taken| (owner.to_owned(), bytes, is_taken);
    let expected = [
        event("forward", 1_000_000, true),
        event("inner", 600_000, true),
        event("inner", 600_000, false),
        event("forward", 100_000, true),
        event("forward", 1_000_000, false),
        event(NOBODY, 400_000, true),
        event("forward", 100_000, false),
    ];
    assert_eq!(told, expected);
    assert!(!window.is_cut && window.events.is_sorted_by(|a, b| a.at <= b.at));
    assert_eq!(RankSlot::end_window(), None);
    stop();
    assert!(!is_on());
    for (block, bytes) in [(weights, 500_000), (second, 300_000), (grown, 400_000), (small, SMALLEST - 1)] {
        give(block, bytes);
    }
    give(std::ptr::with_exposed_provenance_mut(elsewhere), 2_000_000);
}

#[test]
fn a_failure_names_owners_by_what_they_hold() {
    let file = std::env::temp_dir().join(format!("bridge-history-{}.txt", std::process::id()));
    let owners = ["nobody", "decoder.layers.0.mlp", "backward"].map(str::to_owned);
    let live = HashMap::from([
        (1 << 20, Live { bytes: 70_000, owner: 1, slot: 0 }),
        (2 << 20, Live { bytes: 90_000, owner: 2, slot: 1 }),
        (3 << 20, Live { bytes: 80_000, owner: 1, slot: 0 }),
    ]);
    report::failure(1 << 40, &live, &owners, Some(file.clone()), 2);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(lines[0], "out of memory: 1099511627776 bytes cannot be had; 240000 bytes are in use in 3 large blocks");
    assert_eq!(lines[2], "150000 bytes       2 blocks  decoder.layers.0.mlp");
    assert_eq!(lines[3], "90000 bytes       1 blocks  backward");
    assert_eq!(lines[5..], ["90000 bytes  backward", "80000 bytes  decoder.layers.0.mlp"]);
}

#[test]
fn ranks_that_begin_at_once_have_slots_of_their_own() {
    let start = std::sync::Barrier::new(16);
    let take = || {
        start.wait();
        RankSlot::new().0
    };
    let mut slots: Vec<u8> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(take)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), 16);
}
