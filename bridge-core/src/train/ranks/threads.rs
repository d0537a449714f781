//! The CPU backend's thread pool: its size, and keeping it awake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::RunConfig;
use crate::train::error::CommonError;

/// Makes the CPU backend use `count` threads. Outside a pool that is the process's (rayon's global
/// one), so this works once, before anything computes; asking again for the same number is fine. In
/// a pool, a rank's or a run's ([`in_own_pool`]), its size is checked.
///
/// # Errors
/// If the pool exists already with another size.
pub fn set_num_threads(count: usize) -> Result<(), CommonError> {
    let is_in_own_pool = rayon::current_thread_index().is_some();
    let pool = || rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(name);
    let built = !is_in_own_pool && pool().build_global().is_ok();
    let found = rayon::current_num_threads();
    if built || found == count {
        return Ok(());
    }
    Err(CommonError::NumThreads { expected: count, found })
}

/// Name of a compute thread.
fn name(thread: usize) -> String {
    format!("compute-{thread}")
}

/// Stack of a pool's thread in bytes: as much as a program's main thread usually has.
const STACK: usize = 8 << 20;

/// Runs `work` in a thread pool of its own, with `threads` threads or by default all there are. A
/// caller that is in a pool already, as ranks that are threads are, stays there.
///
/// Ranks must not share a pool: a rank that waits for another one would hold a thread which that
/// one needs.
///
/// # Errors
/// If threads cannot be started.
pub fn in_own_pool<T: Send>(threads: Option<usize>, work: impl FnOnce() -> T + Send) -> Result<T, CommonError> {
    if rayon::current_thread_index().is_some() {
        return Ok(work());
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.unwrap_or(0))
        .thread_name(name)
        .stack_size(STACK)
        .build()?;
    Ok(pool.install(work))
}

/// Spin-loop pauses of an idle thread between two polls: one to two microseconds.
const PAUSES: usize = 50;
/// Unsuccessful polls after which a thread yields between polls, because threads may outnumber the
/// CPU's cores.
const PATIENCE: usize = 1000;

/// Runs `work` and keeps the other threads of the caller's pool ([`in_own_pool`]) looking for work
/// until it ends; outside a pool it just runs.
///
/// A training step on the CPU is thousands of parallel regions, with a few microseconds between
/// them in which one thread is busy. Rayon puts threads that find nothing to sleep in that time,
/// and to wake one takes longer than many a region: without this, a step of a 135M model takes a
/// fifth longer. The price is CPU time where the step itself waits, for other ranks for instance.
pub fn with_awake_threads<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if rayon::current_thread_index().is_none() {
        return work();
    }
    rayon::scope(|scope| {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 1..rayon::current_num_threads() {
            let is_over = Arc::clone(&is_over);
            scope.spawn(move |_| {
                let mut looks = 0;
                while !is_over.load(Ordering::Relaxed) {
                    looks = if rayon::yield_now() == Some(rayon::Yield::Executed) { 0 } else { looks + 1 };
                    match looks {
                        0 => {}
                        1..PATIENCE => (0..PAUSES).for_each(|_| std::hint::spin_loop()),
                        _ => std::thread::yield_now(),
                    }
                }
            });
        }
        // Also if `work` panics: the scope waits for the other threads before it passes the panic
        // on.
        let _ends = SetOnDrop(is_over);
        work()
    })
}

/// Runs `work`, [`with_awake_threads`] where they have something to do: if the CPU computes.
pub(in crate::train) fn compute<T: Send>(config: &RunConfig, work: impl FnOnce() -> T + Send) -> T {
    if config.computes_on_cpu() { with_awake_threads(work) } else { work() }
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rayon::prelude::*;

    use super::*;

    #[test]
    fn a_run_has_a_pool_of_its_own_and_ranks_keep_theirs() {
        let threads = || (rayon::current_thread_index().is_some(), rayon::current_num_threads());
        assert_eq!(in_own_pool(Some(3), threads).unwrap(), (true, 3));
        assert_eq!(in_own_pool(Some(3), || in_own_pool(Some(2), threads)).unwrap().unwrap(), (true, 3));
        assert!(!with_awake_threads(threads).0, "outside a pool nothing moves");
    }

    #[test]
    fn the_pool_is_free_again_when_the_work_is_over() {
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started");
            pool.install(|| {
                let sum: u64 = with_awake_threads(|| (0..10_000_u64).into_par_iter().sum());
                assert_eq!(sum, 49_995_000);
                let caught = catch_unwind(AssertUnwindSafe(|| with_awake_threads(|| panic!("in the step"))));
                assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"in the step"));
                // Nested, as an evaluation inside a callback would be.
                assert_eq!(with_awake_threads(|| with_awake_threads(|| rayon::join(|| 1, || 2))), (1, 2));
            });
            // The pool ends only when its threads do.
            drop(pool);
        }
    }
}
