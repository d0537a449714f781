//! The CPU back end's thread pool: its size, and keeping it awake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Pauses of a thread that found nothing to do, before it looks again: one to two microseconds.
const PAUSES: usize = 50;
/// Looks without success after which a thread lets others run between its looks: where threads outnumber the processor's cores.
const PATIENCE: usize = 4000;

/// Runs `work` on a thread of the CPU back end's pool, and keeps the pool's other threads looking for work until it ends.
///
/// A training step is thousands of parallel regions, with a few microseconds between them in which one thread is busy. Rayon puts
/// threads that find nothing to sleep in that time, and to wake one takes longer than many a region: without this, a step of a 135M model
/// takes a fifth longer. The price is processor time where the step itself waits, for other ranks for instance.
pub fn with_awake_threads<T: Send>(work: impl FnOnce() -> T + Send) -> T {
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
        // Also where `work` panics: the scope waits for the others before it passes the panic on.
        let _ends = SetOnDrop(is_over);
        work()
    })
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
    fn threads_stay_awake_for_the_work_and_no_longer() {
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
