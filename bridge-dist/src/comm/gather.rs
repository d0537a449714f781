//! An all-gather for messages of different lengths, built from fixed-length collectives.

use super::{CommError, Communicator};

/// The messages of all ranks of a group, in rank order. All ranks call this together.
///
/// # Errors
/// If a rank is gone.
pub fn all_gather_bytes(group: &dyn Communicator, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
    let mut lengths = vec![0_i64; group.size()];
    group.all_gather((&[mine.len() as i64]).into(), (&mut lengths).into())?;
    let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
    if longest == 0 {
        return Ok(vec![Vec::new(); group.size()]);
    }
    let mut padded = mine.to_vec();
    padded.resize(longest, 0);
    let mut all = vec![0_u8; longest * group.size()];
    group.all_gather((&padded).into(), (&mut all).into())?;
    Ok(all.chunks_exact(longest).zip(lengths).map(|(bytes, length)| bytes[..length as usize].to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::comm::thread::run_ranks;

    #[test]
    fn messages_of_any_length_arrive_in_rank_order() {
        let gathered = run_ranks(3, Duration::from_secs(120), |world| {
            let mine = vec![7 + world.rank() as u8; 5 * world.rank()];
            let first = all_gather_bytes(world.as_ref(), &mine)?;
            Ok::<_, CommError>((first, all_gather_bytes(world.as_ref(), &[])?))
        });
        for (found, nothing) in gathered.unwrap() {
            assert_eq!(found, [vec![], vec![8; 5], vec![9; 10]]);
            assert_eq!(nothing, [const { Vec::<u8>::new() }; 3]);
        }
    }
}
