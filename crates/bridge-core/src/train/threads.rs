//! Size of the CPU back end's thread pool.

use super::TrainError;

/// Makes the CPU back end use `count` threads. The pool is the process's (rayon's global one), so this works once, before
/// anything computes; asking again for the same number is fine. A rank that is a thread has a pool of its own, and only its size is checked.
///
/// # Errors
/// If the pool exists already with another size.
pub fn set_num_threads(count: usize) -> Result<(), TrainError> {
    let is_in_own_pool = rayon::current_thread_index().is_some();
    let built = !is_in_own_pool && rayon::ThreadPoolBuilder::new().num_threads(count).build_global().is_ok();
    let found = rayon::current_num_threads();
    if built || found == count {
        return Ok(());
    }
    Err(TrainError::Device(format!("train.num_threads = {count}: this process already computes with {found} threads")))
}
