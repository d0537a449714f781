//! Report of a history: the peak of the memory in use, and its owners.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Instant;

use super::{Event, Live};

/// Events of the blocks of a rank in a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Blocks in use when the window was opened.
    pub at_start: Vec<WindowBlock>,
    /// Events since the start of the window, in order.
    pub events: Vec<WindowEvent>,
    /// True if there were more events than are kept.
    pub is_cut: bool,
    /// The most bytes that were in use at one time.
    pub peak_bytes: usize,
    /// Seconds from the opening to that time.
    pub peak_at: f64,
    /// The blocks in use at that time, the largest first.
    pub at_peak: Vec<WindowBlock>,
}

/// A block in use.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowBlock {
    /// Address of the block.
    pub address: usize,
    /// Size of the block in bytes.
    pub bytes: usize,
    /// Owner of the block.
    pub owner: String,
}

/// A block that was handed out or taken back.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowEvent {
    /// Seconds since the window was opened.
    pub at: f64,
    /// The block.
    pub block: WindowBlock,
    /// True if the block was allocated, false if it was freed.
    pub is_taken: bool,
}

/// All blocks of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerTotal {
    /// The owner.
    pub owner: String,
    /// Bytes of its blocks.
    pub bytes: usize,
    /// Number of blocks.
    pub blocks: usize,
}

impl Window {
    /// Memory of each owner at the peak, the largest first.
    pub fn owners_at_peak(&self) -> Vec<OwnerTotal> {
        totals(self.at_peak.iter().map(|block| (block.owner.as_str(), block.bytes)))
    }
}

/// The totals of owners, the largest first.
fn totals<'a>(blocks: impl Iterator<Item = (&'a str, usize)>) -> Vec<OwnerTotal> {
    let mut by_owner: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (owner, bytes) in blocks {
        let total = by_owner.entry(owner).or_default();
        *total = (total.0 + bytes, total.1 + 1);
    }
    let total =
        |(owner, (bytes, blocks)): (&str, (usize, usize))| OwnerTotal { owner: owner.to_owned(), bytes, blocks };
    let mut totals: Vec<OwnerTotal> = by_owner.into_iter().map(total).collect();
    totals.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.owner.cmp(&b.owner)));
    totals
}

/// Events of the blocks of one rank.
pub(super) fn window(
    start: &HashMap<usize, Live>,
    began: Instant,
    events: &[Event],
    owners: &[String],
    slot: u8,
    is_cut: bool,
) -> Window {
    let block = |address: usize, live: &Live| WindowBlock {
        address,
        bytes: live.bytes,
        owner: owners[live.owner as usize].clone(),
    };
    let mut live: HashMap<usize, Live> = start.iter().filter(|(_, l)| l.slot == slot).map(|(a, l)| (*a, *l)).collect();
    let mut at_start: Vec<WindowBlock> = live.iter().map(|(address, live)| block(*address, live)).collect();
    at_start.sort_by_key(|block| block.address);
    let mut used: usize = at_start.iter().map(|block| block.bytes).sum();
    let (mut peak_bytes, mut peak_events, mut told) = (used, 0, Vec::new());
    for event in events {
        // A block belongs to the rank that allocated it, even if another thread frees it.
        let (of_block, is_taken) = match event.taken {
            Some(taken) if taken.slot == slot => {
                live.insert(event.address, taken);
                (taken, true)
            }
            Some(_) => continue,
            None => match live.remove(&event.address) {
                Some(taken) => (taken, false),
                None => continue,
            },
        };
        used = if is_taken { used + of_block.bytes } else { used - of_block.bytes };
        let at = event.at.saturating_duration_since(began).as_secs_f64();
        told.push(WindowEvent { at, block: block(event.address, &of_block), is_taken });
        if used > peak_bytes {
            (peak_bytes, peak_events) = (used, told.len());
        }
    }
    let mut at_peak: HashMap<usize, WindowBlock> =
        at_start.iter().map(|block| (block.address, block.clone())).collect();
    for event in &told[..peak_events] {
        match event.is_taken {
            true => at_peak.insert(event.block.address, event.block.clone()),
            false => at_peak.remove(&event.block.address),
        };
    }
    let mut at_peak: Vec<WindowBlock> = at_peak.into_values().collect();
    at_peak.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.address.cmp(&b.address)));
    let peak_at = peak_events.checked_sub(1).map_or(0.0, |last| told[last].at);
    Window { at_start, events: told, is_cut, peak_bytes, peak_at, at_peak }
}

/// Tells of a failure on standard error, and in a file where there is a place for it.
pub(super) fn failure(
    bytes: usize,
    live: &HashMap<usize, Live>,
    owners: &[String],
    file: Option<PathBuf>,
    named: usize,
) {
    let of = |live: &Live| (owners[live.owner as usize].as_str(), live.bytes);
    let used: usize = live.values().map(|live| live.bytes).sum();
    let mut text = format!(
        "out of memory: {bytes} bytes cannot be had; {used} bytes are in use in {} large blocks\nby owner, the largest first:\n",
        live.len()
    );
    for OwnerTotal { owner, bytes, blocks } in totals(live.values().map(of)).into_iter().take(named) {
        let _ = writeln!(text, "  {bytes:>14} bytes  {blocks:>6} blocks  {owner}");
    }
    let mut largest: Vec<(&str, usize)> = live.values().map(of).collect();
    largest.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    text.push_str("the largest blocks:\n");
    for (owner, bytes) in largest.into_iter().take(named) {
        let _ = writeln!(text, "  {bytes:>14} bytes  {owner}");
    }
    eprint!("{text}");
    if let Some(file) = file {
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        match folder.and_then(|()| std::fs::write(&file, text)) {
            Ok(()) => eprintln!("also in {}", file.display()),
            Err(error) => eprintln!("{} cannot be written: {error}", file.display()),
        }
    }
}
