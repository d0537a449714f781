//! Verifying with all ranks: the first rank chooses the folders to verify, and every rank reads its
//! share of their files. A single rank would take longer for a terabyte than the time limit of the
//! waiting ranks.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bridge_dist::comm::Group;

use super::error::{CheckpointError, Damage};
use super::exchange;
use super::reader::Checkpoint;
use super::verify::{Share, Verification, verify_folder, verify_share};

const DAMAGE: &str = "the list of damage";

/// The outcome for a folder.
pub(super) type Verified = Result<Checkpoint, Vec<Damage>>;

/// The ranks that read the files of the folders during the search for a checkpoint: one rank, or
/// all.
#[derive(Debug)]
pub struct Verifier<'a> {
    others: Option<&'a Group>,
}

impl Verifier<'_> {
    /// This process reads all files itself.
    pub const ALONE: Self = Self { others: None };

    /// Verifies a folder.
    pub(super) fn verify(&self, folder: &Path, verification: Verification) -> Result<Verified, CheckpointError> {
        match self.others {
            Some(group) if verification == Verification::Contents => {
                announce(group, Some(folder))?;
                let share = Share { rank: 0, ranks: group.size() };
                let verified = verify_share(folder, verification, share);
                let own = verified.as_ref().err().cloned().unwrap_or_default();
                let mut damage = exchange::collect(group, own, DAMAGE)?.concat();
                damage.sort_by(|a, b| a.file().cmp(b.file()));
                // Every rank has found the damage that does not depend on contents.
                damage.dedup();
                // A single process does not check the form of files after it has found checksum
                // errors.
                let is_form = |damage: &Damage| matches!(damage, Damage::Malformed { .. });
                if !damage.iter().all(is_form) {
                    damage.retain(|damage| !is_form(damage));
                }
                Ok(if damage.is_empty() { verified } else { Err(damage) })
            }
            _ => Ok(verify_folder(folder, verification)),
        }
    }
}

/// Lets the first rank of `group` `look` for a checkpoint, while other ranks verify their shares of
/// the folders that it visits. All ranks call this together; the result is the first rank's.
///
/// # Errors
/// If ranks cannot communicate.
pub fn verify_with_all_ranks<T>(
    group: &Group,
    look: impl FnOnce(&Verifier<'_>) -> T,
) -> Result<Option<T>, CheckpointError> {
    if group.size() == 1 {
        return Ok(Some(look(&Verifier::ALONE)));
    }
    if group.rank() == 0 {
        let found = look(&Verifier { others: Some(group) });
        announce(group, None)?;
        return Ok(Some(found));
    }
    let share = Share { rank: group.rank(), ranks: group.size() };
    while let Some(folder) = receive_folder(group)? {
        let damage = verify_share(&folder, Verification::Contents, share).err().unwrap_or_default();
        exchange::report(group, &damage, DAMAGE)?;
    }
    Ok(None)
}

/// Announces the next folder to the other ranks; `None` ends their part.
fn announce(group: &Group, folder: Option<&Path>) -> Result<(), CheckpointError> {
    let mut length = [folder.map_or(-1, |folder| folder.as_os_str().len() as i64)];
    group.broadcast((&mut length).into(), 0)?;
    if let Some(folder) = folder {
        let mut bytes = folder.as_os_str().as_bytes().to_vec();
        group.broadcast((&mut bytes).into(), 0)?;
    }
    Ok(())
}

/// The folder that the first rank has announced.
fn receive_folder(group: &Group) -> Result<Option<PathBuf>, CheckpointError> {
    let mut length = [0_i64];
    group.broadcast((&mut length).into(), 0)?;
    let Ok(length) = usize::try_from(length[0]) else { return Ok(None) };
    let mut bytes = vec![0_u8; length];
    group.broadcast((&mut bytes).into(), 0)?;
    Ok(Some(OsString::from_vec(bytes).into()))
}
