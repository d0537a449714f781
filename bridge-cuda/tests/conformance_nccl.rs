//! Runs the conformance suite, and its additions for device memory, on NCCL: one thread for each
//! GPU of this machine. Without a GPU the tests print a note on standard error.

use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bridge_cuda::nccl::{NcclCommunicator, NcclInitError, device_count};
use bridge_dist::comm::single::SingleCommunicator;
use bridge_dist::comm::thread::{BoxError, run_ranks};
use bridge_dist::comm::{Buffer, CommErrorKind, Communicator, DType, Element, Group, HostBuffer, ReduceOp};
use cudarc::driver::CudaSlice;
use half::bf16;

#[path = "../../bridge-dist/tests/suite/mod.rs"]
mod suite;

use suite::{LONG, Outcome};

/// The number of devices, or why NCCL cannot be exercised here.
fn devices() -> Result<usize, &'static str> {
    static DEVICES: OnceLock<Result<usize, String>> = OnceLock::new();
    let found = DEVICES.get_or_init(|| {
        let count = device_count().map_err(|error| error.to_string())?;
        let alone: Group = Arc::new(SingleCommunicator::new("alone"));
        match NcclCommunicator::connect(&alone, 0) {
            Err(error @ NcclInitError::MissingLibrary { .. }) => Err(error.to_string()),
            Err(error) => panic!("there is a GPU and NCCL does not start: {error}"),
            Ok(_) => Ok(count),
        }
    });
    found.as_ref().copied().map_err(String::as_str)
}

/// The world size of a test that needs `at_least` devices. Not through the macros, whose output the
/// harness keeps to itself.
fn world_size(test: &str, at_least: usize) -> Option<usize> {
    let reason = match devices() {
        Ok(count) if count >= at_least => return Some(count),
        Ok(count) => format!("it needs {at_least} GPUs, and there are {count}"),
        Err(reason) => reason.to_owned(),
    };
    writeln!(std::io::stderr(), "SKIPPED {test}: {reason}").expect("standard error takes the line");
    None
}

fn on_all_devices(size: usize, program: impl Fn(&NcclCommunicator) -> Outcome + Sync) {
    let result = run_ranks(size, LONG, |bootstrap| {
        let comm = NcclCommunicator::connect(&bootstrap, bootstrap.rank())?;
        program(&comm)?;
        Ok::<_, BoxError>((bootstrap, comm))
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn host_memory() {
    let Some(size) = world_size("host_memory", 1) else { return };
    let result = run_ranks(size, LONG, |bootstrap| {
        let comm: Group = Arc::new(NcclCommunicator::connect(&bootstrap, bootstrap.rank())?);
        for (name, case) in suite::CASES {
            case(&comm).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok::<_, BoxError>(())
    });
    result.unwrap_or_else(|error| panic!("{size} devices: {error}"));
}

#[test]
fn failures() {
    let Some(size) = world_size("failures", 2) else { return };
    // A first operation may take NCCL some time.
    suite::failures::LIMIT.get_or_init(|| Duration::from_secs(4));
    for (name, case) in suite::failures::CASES {
        let result = run_ranks(size, LONG, |bootstrap| {
            let comm: Group = Arc::new(NcclCommunicator::connect(&bootstrap, bootstrap.rank())?);
            case(&comm)?;
            Ok::<_, BoxError>((bootstrap, comm))
        });
        result.unwrap_or_else(|error| panic!("{name} on {size} devices: {error}"));
    }
}

/// The small number that rank `rank` holds at `index`; sums of eight fit all types but bytes
/// exactly.
fn small(rank: usize, index: usize) -> i64 {
    ((index * 7 + rank * 13) % 31) as i64
}

fn host(dtype: DType, values: impl Iterator<Item = i64>) -> HostBuffer {
    match dtype {
        DType::F32 => values.map(|x| x as f32).collect::<Vec<_>>().into(),
        DType::Bf16 => values.map(|x| bf16::from_f32(x as f32)).collect::<Vec<_>>().into(),
        DType::F64 => values.map(|x| x as f64).collect::<Vec<_>>().into(),
        DType::I64 => values.collect::<Vec<_>>().into(),
        DType::I32 => values.map(|x| x as i32).collect::<Vec<_>>().into(),
        DType::U8 => values.map(|x| x as u8).collect::<Vec<_>>().into(),
    }
}

fn as_f64(buffer: &HostBuffer) -> Vec<f64> {
    fn values<T: Element>(buffer: Buffer<'_>, convert: impl Fn(T) -> f64) -> Vec<f64> {
        buffer.as_slice::<T>().expect("the type was asked for").iter().map(|&x| convert(x)).collect()
    }
    let view = buffer.view();
    match view.dtype() {
        DType::F32 => values::<f32>(view, f64::from),
        DType::Bf16 => values::<bf16>(view, f64::from),
        DType::F64 => values::<f64>(view, |x| x),
        DType::I64 => values::<i64>(view, |x| x as f64),
        DType::I32 => values::<i32>(view, f64::from),
        DType::U8 => values::<u8>(view, f64::from),
    }
}

/// Elements on the device, with an extra byte, because device memory cannot be empty.
struct Memory {
    dtype: DType,
    bytes: CudaSlice<u8>,
    len: usize,
}

impl Memory {
    fn upload(comm: &NcclCommunicator, values: &HostBuffer) -> Result<Self, BoxError> {
        let mut bytes = values.view().bytes().to_vec();
        let len = bytes.len();
        bytes.push(0xAA);
        Ok(Self { dtype: values.dtype(), bytes: comm.stream().clone_htod(&bytes)?, len })
    }

    fn values(&self, comm: &NcclCommunicator) -> Result<HostBuffer, BoxError> {
        let bytes = comm.stream().clone_dtoh(&self.bytes)?;
        comm.stream().synchronize()?;
        assert_eq!(bytes[self.len], 0xAA, "an operation wrote beyond its memory");
        let mut values = HostBuffer::zeros(self.dtype, self.len / self.dtype.size());
        values.view_mut().bytes_mut().copy_from_slice(&bytes[..self.len]);
        Ok(values)
    }
}

const LENGTHS: [usize; 4] = [0, 1, 7, 600_011];

/// Runs a case for each type and length.
fn each(comm: &NcclCommunicator, case: impl Fn(DType, usize) -> Outcome) -> Outcome {
    for dtype in [DType::F32, DType::Bf16, DType::I64, DType::F64, DType::I32, DType::U8] {
        for len in LENGTHS {
            case(dtype, len).map_err(|error| format!("rank {}: {len} x {dtype}: {error}", comm.rank()))?;
        }
    }
    Ok(())
}

fn check_reduced(found: &HostBuffer, size: usize, start: usize, op: ReduceOp) {
    for (index, value) in as_f64(found).into_iter().enumerate() {
        let values = (0..size).map(|rank| small(rank, start + index) as f64);
        let expected = match op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Max => values.fold(f64::MIN, f64::max),
            ReduceOp::Min => values.fold(f64::MAX, f64::min),
            ReduceOp::Avg => values.sum::<f64>() / size as f64,
        };
        // An average may be a sum of rounded parts.
        let slack = if op == ReduceOp::Avg { 0.02 * expected.abs() + 1e-6 } else { 0.0 };
        assert!((value - expected).abs() <= slack, "{op} at {index}: expected {expected}, found {value}");
    }
}

#[test]
fn device_reductions() {
    let Some(size) = world_size("device_reductions", 1) else { return };
    on_all_devices(size, |comm| {
        let (rank, device) = (comm.rank(), comm.device());
        each(comm, |dtype, len| {
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg] {
                let mut data = Memory::upload(comm, &host(dtype, (0..len).map(|index| small(rank, index))))?;
                let view = &mut data.bytes.slice_mut(0..data.len);
                let reduced = device.all_reduce(&mut device.write_bytes(dtype, view)?, op);
                if op == ReduceOp::Avg && !dtype.is_float() {
                    let error = reduced.err().ok_or("an average of integers")?;
                    assert!(matches!(&*error.kind, CommErrorKind::InvalidArgument { .. }), "{error}");
                    continue;
                }
                reduced?;
                check_reduced(&data.values(comm)?, size, 0, op);

                let input = Memory::upload(comm, &host(dtype, (0..len * size).map(|index| small(rank, index))))?;
                let mut output = Memory::upload(comm, &HostBuffer::zeros(dtype, len))?;
                device.reduce_scatter(
                    &device.read_bytes(dtype, &input.bytes.slice(0..input.len))?,
                    &mut device.write_bytes(dtype, &mut output.bytes.slice_mut(0..output.len))?,
                    op,
                )?;
                check_reduced(&output.values(comm)?, size, rank * len, op);
            }
            Ok(())
        })
    });
}

#[test]
fn device_moves() {
    let Some(size) = world_size("device_moves", 1) else { return };
    on_all_devices(size, |comm| {
        let (rank, device) = (comm.rank(), comm.device());
        let part = |from: usize, len: usize| (0..len).map(move |index| small(from, index));
        each(comm, |dtype, len| {
            let input = Memory::upload(comm, &host(dtype, part(rank, len)))?;
            let mut output = Memory::upload(comm, &HostBuffer::zeros(dtype, len * size))?;
            device.all_gather(
                &device.read_bytes(dtype, &input.bytes.slice(0..input.len))?,
                &mut device.write_bytes(dtype, &mut output.bytes.slice_mut(0..output.len))?,
            )?;
            assert!(output.values(comm)? == host(dtype, (0..size).flat_map(|from| part(from, len))), "all_gather");

            for root in 0..size {
                let mut data = Memory::upload(comm, &host(dtype, part(rank, len)))?;
                let view = &mut data.bytes.slice_mut(0..data.len);
                device.broadcast(&mut device.write_bytes(dtype, view)?, root)?;
                assert!(data.values(comm)? == host(dtype, part(root, len)), "broadcast from {root}");
            }

            let input = Memory::upload(comm, &host(dtype, part(rank, len * size)))?;
            device.all_to_all(
                &device.read_bytes(dtype, &input.bytes.slice(0..input.len))?,
                &mut device.write_bytes(dtype, &mut output.bytes.slice_mut(0..output.len))?,
            )?;
            let expected = (0..size).flat_map(|from| part(from, len * size).skip(rank * len).take(len));
            assert!(output.values(comm)? == host(dtype, expected), "all_to_all");
            Ok(())
        })
    });
}

#[test]
fn device_messages() {
    let Some(size) = world_size("device_messages", 2) else { return };
    on_all_devices(size, |comm| {
        let (rank, device) = (comm.rank(), comm.device());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        each(comm, |dtype, len| {
            let mine = Memory::upload(comm, &host(dtype, (0..len).map(|index| small(rank, index))))?;
            let mut theirs = Memory::upload(comm, &HostBuffer::zeros(dtype, len))?;
            {
                let view = mine.bytes.slice(0..mine.len);
                let outgoing = device.read_bytes(dtype, &view)?;
                let mut place = theirs.bytes.slice_mut(0..theirs.len);
                let mut incoming = device.write_bytes(dtype, &mut place)?;
                device.send_receive(&[(&outgoing, next)], &mut [(&mut incoming, previous)])?;
                // Once more, one after the other.
                if rank == 0 {
                    device.send(&outgoing, next)?;
                }
                device.recv(&mut incoming, previous)?;
                if rank != 0 {
                    device.send(&outgoing, next)?;
                }
            }
            assert!(theirs.values(comm)? == host(dtype, (0..len).map(|index| small(previous, index))));
            Ok(())
        })
    });
}

/// Tests that need no second device: typed slices, sub-groups of one with device memory, borrows
/// that are refused.
#[test]
fn device_memory_of_one_rank() {
    let Some(size) = world_size("device_memory_of_one_rank", 1) else { return };
    on_all_devices(size, |comm| {
        let alone = comm.split_devices(Some(comm.rank()), 0, "alone")?.ok_or("a colour was given")?;
        assert_eq!((alone.rank(), alone.size(), alone.name()), (0, 1, "alone"));
        let mut values = alone.stream().clone_htod(&vec![1.5f32, -2.0, 3.25])?;
        let device = alone.device();
        device.all_reduce(&mut device.write(&mut values)?, ReduceOp::Avg)?;
        assert_eq!(alone.stream().clone_dtoh(&values)?, [1.5, -2.0, 3.25]);
        let odd = alone.stream().alloc_zeros::<u8>(7)?;
        let error = device.read_bytes(DType::F32, &odd).err().ok_or("seven bytes are no floats")?;
        assert!(error.to_string().contains("expected a multiple of the 4 bytes of f32, found 7"), "{error}");
        let error = device.send(&device.read(&values)?, 0).err().ok_or("sent to itself")?;
        assert!(error.to_string().contains("peer"), "{error}");
        assert!(comm.split_devices(None, 0, "nobody")?.is_none());
        Ok(())
    });
}

/// Ranks that differ get an error, and do not hang in NCCL.
#[test]
fn device_mismatches() {
    let Some(size) = world_size("device_mismatches", 2) else { return };
    on_all_devices(size, |comm| {
        let device = comm.device();
        let mut values = comm.stream().alloc_zeros::<f32>(3 + comm.rank() / (size - 1))?;
        let error = device.all_reduce(&mut device.write(&mut values)?, ReduceOp::Sum).err().ok_or("unnoticed")?;
        let CommErrorKind::Mismatch { peer, .. } = &*error.kind else { panic!("{error}") };
        assert_eq!(*peer, size - 1);
        assert!(comm.barrier().is_err(), "the world has failed");
        Ok(())
    });
}
