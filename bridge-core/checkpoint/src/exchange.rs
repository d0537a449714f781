//! Messages between the first rank and all other ranks, as JSON. Callers interpret them.

use bridge_dist::comm::{CommError, Group};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CheckpointError;

/// Tag of the messages.
const TAG: u32 = 0;

/// Sends a value to the first rank. `what` names it in errors.
pub(super) fn report<T: Serialize>(group: &Group, value: &T, what: &'static str) -> Result<(), CheckpointError> {
    let bytes =
        serde_json::to_vec(value).map_err(|error| CheckpointError::invalid_snapshot(what, error.to_string()))?;
    let length = [bytes.len() as i64];
    group.send((&length).into(), 0, TAG)?;
    Ok(group.send((&bytes).into(), 0, TAG)?)
}

/// On the first rank: the values of all ranks, in rank order, including its `own`.
pub(super) fn collect<T: DeserializeOwned>(
    group: &Group,
    own: T,
    what: &'static str,
) -> Result<Vec<T>, CheckpointError> {
    let mut all = vec![own];
    for rank in 1..group.size() {
        let mut length = [0_i64];
        group.recv((&mut length).into(), rank, TAG)?;
        let mut bytes = vec![0_u8; usize::try_from(length[0]).unwrap_or(0)];
        group.recv((&mut bytes).into(), rank, TAG)?;
        all.push(
            serde_json::from_slice(&bytes).map_err(|error| {
                CheckpointError::invalid_snapshot(format!("{what} of rank {rank}"), error.to_string())
            })?,
        );
    }
    Ok(all)
}

/// Bytes of an error message that other ranks get.
const MESSAGE: usize = 1024;

/// The error messages of all ranks, cut to a length; empty for ranks without an error. All ranks
/// call this together.
pub(super) fn messages(group: &Group, own: Option<&str>) -> Result<Vec<String>, CommError> {
    let mut mine = vec![0_u8; MESSAGE];
    let text = own.unwrap_or_default().as_bytes();
    let length = text.len().min(MESSAGE);
    mine[..length].copy_from_slice(&text[..length]);
    let mut all = vec![0_u8; MESSAGE * group.size()];
    group.all_gather((&mine).into(), (&mut all).into())?;
    let text = |bytes: &[u8]| {
        let bytes: Vec<u8> = bytes.iter().copied().take_while(|byte| *byte != 0).collect();
        // A character may be cut at the end.
        String::from_utf8_lossy(&bytes).trim_end_matches('\u{fffd}').to_owned()
    };
    Ok(all.chunks(MESSAGE).map(text).collect())
}

/// Broadcasts the first rank's `value` to all ranks; other ranks pass `None`. Every rank gets the
/// deserialized value.
pub(super) fn share<T: Serialize + DeserializeOwned>(
    group: &Group,
    value: Option<&T>,
    what: &'static str,
) -> Result<T, CheckpointError> {
    let bad = |error: serde_json::Error| CheckpointError::invalid_snapshot(what, error.to_string());
    let mut bytes = value.map_or(Ok(Vec::new()), serde_json::to_vec).map_err(bad)?;
    if group.size() > 1 {
        let mut length = [bytes.len() as i64];
        group.broadcast((&mut length).into(), 0)?;
        bytes.resize(usize::try_from(length[0]).unwrap_or(0), 0);
        group.broadcast((&mut bytes).into(), 0)?;
    }
    serde_json::from_slice(&bytes).map_err(bad)
}
