//! Ranks, process groups, collectives and pipeline schedules for distributed training in Rust.
//!
//! Other projects can use this crate without the rest of Bridge. It works on host memory and plain
//! data, without a tensor library:
//!
//! - [`comm`] has the [`Communicator`](comm::Communicator) trait (all_reduce, reduce_scatter,
//!   all_gather, broadcast, all_to_all, messages, sub-groups, and non-blocking forms) with three
//!   implementations: one rank ([`comm::single`]), threads of one process ([`comm::thread`]), and
//!   MPI processes (`comm::mpi`, cargo feature `mpi`). The crate `bridge-cuda` has a fourth for
//!   NVIDIA GPUs. Sums are taken in rank order, so results are bit-identical on all ranks, from run
//!   to run, and with every implementation. If ranks disagree, vanish or are late, every rank gets
//!   an error that says which rank did what.
//! - [`mesh`] lays ranks out for tensor, context, data, pipeline and expert parallelism in
//!   Megatron's order, and creates the process groups.
//! - [`schedule`] makes pipeline schedules (GPipe, 1F1B, interleaved, zero-bubble) as lists of
//!   actions, places layers on stages, and simulates schedules to find deadlocks, memory use and
//!   bubbles.
//!
//! Collectives of Burn tensors are in the crate `bridge-regions`.
//!
//! # Two ranks
//!
//! ```
//! use std::time::Duration;
//! use bridge_dist::comm::{CommError, ReduceOp, thread::run_ranks};
//!
//! let sums = run_ranks(2, Duration::from_secs(10), |comm| {
//!     let mut gradient = vec![comm.rank() as f32 + 1.0; 4];
//!     comm.all_reduce((&mut gradient).into(), ReduceOp::Sum)?;
//!     Ok::<_, CommError>(gradient)
//! })?;
//! assert_eq!(sums, [[3.0; 4], [3.0; 4]]);
//! # Ok::<(), bridge_dist::comm::thread::RankError>(())
//! ```
//!
//! # GPUs
//!
//! With the cargo feature `nccl`, `NcclCommunicator::connect(&bootstrap, device)` makes a
//! communicator whose data moves by NCCL out of any other one: MPI processes on a cluster, threads
//! for the GPUs of one machine. It is a `Communicator` for host memory, with the same results to
//! the bit, and `comm.device()` has the collectives of device memory (`CudaSlice`s, or addresses
//! from a tensor library), whose float sums are in NCCL's order. It builds without CUDA; where the
//! driver or `libnccl.so` is missing at run time, every rank gets an error that says what to
//! install.
//!
//! # A mesh of eight ranks
//!
//! ```
//! use bridge_dist::mesh::{GroupKind, Mesh, ParallelSizes, RankOrder};
//!
//! let sizes = ParallelSizes {
//!     tensor_model_parallel_size: 2,
//!     pipeline_model_parallel_size: 2,
//!     ..ParallelSizes::default()
//! };
//! let mesh = Mesh::new(8, sizes, RankOrder::TpCpEpDpPp)?;
//! assert_eq!(mesh.data_parallel_size(), 2);
//! assert_eq!(mesh.group_of(GroupKind::Pipeline, 3), Some(vec![3, 7]));
//! # Ok::<(), bridge_dist::mesh::MeshError>(())
//! ```
//!
//! # Simulating a pipeline
//!
//! ```
//! use bridge_dist::schedule::{Costs, PipelineSchedule, PipelineShape, ScheduleKind, Sends, simulate};
//!
//! let shape = PipelineShape { num_stages: 4, num_chunks: 1, num_microbatches: 8 };
//! let schedule = PipelineSchedule::new(ScheduleKind::OneForwardOneBackward, shape)?;
//! let report = simulate(&schedule, Costs::default(), Sends::Rendezvous)?;
//! assert_eq!(report.max_in_flight, [4, 3, 2, 1]);
//! # Ok::<(), bridge_dist::schedule::ScheduleError>(())
//! ```

#![deny(missing_docs)]

pub mod comm;
pub mod mesh;
pub mod schedule;
