//! Region operations on 2, 3 and 4 thread ranks against the same computation in one graph: values
//! and gradients.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bridge_dist::comm::thread::{Devices, run_ranks, run_ranks_on};
use bridge_dist::comm::{CommError, Group};
use bridge_kernels::Philox;
use bridge_regions::{
    Cut, RowCounts, all_gather, all_gather_int, all_to_all, all_to_all_uneven, copy_to_group, gather_replicated,
    gather_sequence, reduce_from_group, reduce_scatter, reduce_scatter_sequence, scatter,
};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

/// Outputs and gradients of one rank's program, or of all ranks' programs in one graph.
type Values = (Vec<f32>, Vec<f32>);

/// Distribution of a tensor over ranks: the same on all ranks, or one for each.
#[derive(Clone, Copy, PartialEq)]
enum Held {
    Alike,
    Apart,
}

struct Case<'a> {
    ranks: usize,
    dtype: FloatDType,
    /// Shape of the input on each rank.
    shapes: Vec<[usize; 3]>,
    inputs: Held,
    /// Distribution of the weights that multiply the outputs to make a loss, which stands for the
    /// layers after the operation.
    weights: Held,
    /// The operation in one graph: inputs by rank to outputs by rank.
    plain: &'a (dyn Fn(&[Tensor<3>]) -> Vec<Tensor<3>> + Sync),
    op: &'a (dyn Fn(Tensor<3>, &Group) -> Tensor<3> + Sync),
}

fn draw(shape: [usize; 3], key: u64, dtype: FloatDType, device: &Device) -> Tensor<3> {
    let values = Philox::new(key).normal(shape.iter().product(), 1.0);
    Tensor::from_data(TensorData::new(values, shape), (device, dtype.into()))
}

fn floats(x: Tensor<3>) -> Vec<f32> {
    x.cast(FloatDType::F32).into_data().try_into_vec().unwrap()
}

fn key(held: Held, base: u64, rank: usize) -> u64 {
    if held == Held::Alike { base } else { base + rank as u64 }
}

impl Case<'_> {
    fn input(&self, rank: usize) -> Tensor<3> {
        draw(self.shapes[rank], key(self.inputs, 10, rank), self.dtype, &Device::flex().autodiff()).require_grad()
    }

    fn weight(&self, rank: usize, shape: [usize; 3]) -> Tensor<3> {
        draw(shape, key(self.weights, 70, rank), self.dtype, &Device::flex().autodiff())
    }

    /// Output and input gradient of each rank, in one graph.
    fn expected(&self) -> Vec<Values> {
        let inputs: Vec<Tensor<3>> = match self.inputs {
            Held::Alike => vec![self.input(0); self.ranks],
            Held::Apart => (0..self.ranks).map(|rank| self.input(rank)).collect(),
        };
        let outputs = (self.plain)(&inputs);
        let losses = outputs.iter().enumerate().map(|(rank, y)| (y.clone() * self.weight(rank, y.dims())).sum());
        // Outputs that all ranks hold alike and weigh alike are one tensor: they count once.
        let counted = if self.weights == Held::Alike { 1 } else { self.ranks };
        let loss = losses.take(counted).reduce(|a, b| a + b).unwrap();
        let gradients = loss.backward();
        let gradient =
            |x: &Tensor<3>| floats(Tensor::from_data(x.grad(&gradients).unwrap().into_data(), &Device::flex()));
        inputs.iter().zip(outputs).map(|(x, y)| (floats(y), gradient(x))).collect()
    }

    fn found(&self, devices: Devices) -> Vec<Values> {
        run_ranks_on(devices, self.ranks, Duration::from_secs(30), |group| {
            let x = self.input(group.rank());
            let y = (self.op)(x.clone(), &group);
            let gradients = (y.clone() * self.weight(group.rank(), y.dims())).sum().backward();
            Ok::<_, CommError>((floats(y), floats(x.grad(&gradients).unwrap())))
        })
        .unwrap()
    }

    #[track_caller]
    fn check(&self) {
        let tolerance = if self.dtype == FloatDType::BF16 { 4e-2 } else { 1e-6 };
        let found = self.found(Devices::Apart);
        // Without a copy in host memory the bits are the same.
        assert_eq!(self.found(Devices::Shared), found);
        for (rank, (found, expected)) in found.into_iter().zip(self.expected()).enumerate() {
            for (what, found, expected) in [("output", found.0, expected.0), ("gradient", found.1, expected.1)] {
                assert_eq!(found.len(), expected.len(), "{what} of rank {rank}");
                for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
                    assert!(
                        (a - b).abs() <= tolerance * b.abs().max(1.0),
                        "{what} of rank {rank} of {}, element {i}: {a}, expected {b}",
                        self.ranks
                    );
                }
            }
        }
    }
}

fn for_all(mut check: impl FnMut(usize, FloatDType)) {
    for ranks in [2, 3, 4] {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            check(ranks, dtype);
        }
    }
}

fn sum(parts: &[Tensor<3>]) -> Tensor<3> {
    parts.iter().cloned().reduce(|a, b| a + b).unwrap()
}

/// The part of `whole` that a rank holds.
fn part(whole: &Tensor<3>, dim: usize, cut: Cut, rank: usize, ranks: usize) -> Tensor<3> {
    let ranges = cut.parts(whole.dims()[dim], rank, ranks);
    Tensor::cat(ranges.into_iter().map(|range| whole.clone().narrow(dim, range.start, range.len())).collect(), dim)
}

/// The whole from all ranks' parts.
fn whole(parts: &[Tensor<3>], dim: usize, cut: Cut) -> Tensor<3> {
    let ranks = parts.len();
    let size = parts[0].dims()[dim] * ranks;
    let mut pieces = Vec::new();
    for (rank, part) in parts.iter().enumerate() {
        let mut start = 0;
        for range in cut.parts(size, rank, ranks) {
            pieces.push((range.start, part.clone().narrow(dim, start, range.len())));
            start += range.len();
        }
    }
    pieces.sort_by_key(|(start, _)| *start);
    Tensor::cat(pieces.into_iter().map(|(_, piece)| piece).collect(), dim)
}

#[test]
fn copy_and_reduce() {
    for_all(|ranks, dtype| {
        let shapes = vec![[3, 5, 7]; ranks];
        Case {
            ranks,
            dtype,
            shapes: shapes.clone(),
            inputs: Held::Alike,
            weights: Held::Apart,
            plain: &|inputs| inputs.to_vec(),
            op: &copy_to_group,
        }
        .check();
        Case {
            ranks,
            dtype,
            shapes,
            inputs: Held::Apart,
            weights: Held::Alike,
            plain: &|inputs| vec![sum(inputs); inputs.len()],
            op: &reduce_from_group,
        }
        .check();
    });
}

#[test]
fn gathering() {
    for_all(|ranks, dtype| {
        for dim in 0..3 {
            for cut in [Cut::Contiguous, Cut::Zigzag] {
                let mut shape = [3, 5, 7];
                shape[dim] = 2 * (dim + 1);
                let case = Case {
                    ranks,
                    dtype,
                    shapes: vec![shape; ranks],
                    inputs: Held::Apart,
                    weights: Held::Apart,
                    plain: &|inputs| vec![whole(inputs, dim, cut); inputs.len()],
                    op: &|x, group| all_gather(x, dim, cut, group),
                };
                case.check();
                let replicated = |x: Tensor<3>, group: &Group| gather_replicated(x, dim, cut, group);
                Case { weights: Held::Alike, op: &replicated, ..case }.check();
            }
        }
    });
}

#[test]
fn gathering_integers() {
    for ranks in [2, 3, 4] {
        let gathered = run_ranks(ranks, Duration::from_secs(30), |group| {
            let size = 4 * ranks as i64;
            let own: Vec<i64> = (0..3)
                .flat_map(|row| {
                    Cut::Zigzag
                        .parts(4 * ranks, group.rank(), ranks)
                        .into_iter()
                        .flatten()
                        .map(move |i| row * size + i as i64)
                })
                .collect();
            let x = Tensor::<2, Int>::from_data(TensorData::new(own, [3, 4]), &Device::flex());
            Ok::<_, CommError>(all_gather_int(x, 1, Cut::Zigzag, &group).into_data().iter::<i64>().collect::<Vec<_>>())
        });
        for whole in gathered.unwrap() {
            assert_eq!(whole, (0..12 * ranks as i64).collect::<Vec<_>>());
        }
    }
}

#[test]
fn cutting() {
    for_all(|ranks, dtype| {
        for dim in 0..3 {
            for cut in [Cut::Contiguous, Cut::Zigzag] {
                let mut shape = [3, 5, 7];
                shape[dim] = 2 * (dim + 1) * ranks;
                let parts = |x: &Tensor<3>| (0..ranks).map(|rank| part(x, dim, cut, rank, ranks)).collect();
                Case {
                    ranks,
                    dtype,
                    shapes: vec![shape; ranks],
                    inputs: Held::Apart,
                    weights: Held::Apart,
                    plain: &|inputs| parts(&sum(inputs)),
                    op: &|x, group| reduce_scatter(x, dim, cut, group),
                }
                .check();
                Case {
                    ranks,
                    dtype,
                    shapes: vec![shape; ranks],
                    inputs: Held::Alike,
                    weights: Held::Apart,
                    plain: &|inputs| parts(&inputs[0]),
                    op: &|x, group| scatter(x, dim, cut, group),
                }
                .check();
            }
        }
    });
}

#[test]
fn exchanging() {
    for_all(|ranks, dtype| {
        // Rank i sends (i + 2 j) mod 4 rows to rank j: some none at all.
        let rows = |from: usize, to: usize| (from + 2 * to) % 4;
        let counts = |rank: usize| RowCounts {
            send: (0..ranks).map(|to| rows(rank, to)).collect(),
            receive: (0..ranks).map(|from| rows(from, rank)).collect(),
        };
        let start = |from: usize, to: usize| (0..to).map(|before| rows(from, before)).sum::<usize>();
        Case {
            ranks,
            dtype,
            shapes: (0..ranks).map(|rank| [counts(rank).send.iter().sum(), 3, 5]).collect(),
            inputs: Held::Apart,
            weights: Held::Apart,
            plain: &|inputs| {
                let received = |to: usize| {
                    let from = inputs.iter().enumerate().filter(|(from, _)| rows(*from, to) > 0);
                    Tensor::cat(from.map(|(from, x)| x.clone().narrow(0, start(from, to), rows(from, to))).collect(), 0)
                };
                (0..ranks).map(received).collect()
            },
            op: &|x, group| all_to_all_uneven(x, &counts(group.rank()), group),
        }
        .check();
        Case {
            ranks,
            dtype,
            shapes: vec![[3 * ranks, 2, 5]; ranks],
            inputs: Held::Apart,
            weights: Held::Apart,
            plain: &|inputs| {
                let received =
                    |to: usize| Tensor::cat(inputs.iter().map(|x| x.clone().narrow(0, 3 * to, 3)).collect(), 0);
                (0..ranks).map(received).collect()
            },
            op: &all_to_all,
        }
        .check();
    });
}

#[test]
fn a_group_of_one_is_no_operation() {
    run_ranks(1, Duration::from_secs(30), |group| {
        let x = draw([2, 3, 5], 1, FloatDType::F32, &Device::flex().autodiff()).require_grad();
        let even = RowCounts { send: vec![2], receive: vec![2] };
        let results = [
            copy_to_group(x.clone(), &group),
            reduce_from_group(x.clone(), &group),
            gather_sequence(x.clone(), 1, &group),
            reduce_scatter_sequence(x.clone(), 1, &group),
            scatter(x.clone(), 1, Cut::Contiguous, &group),
            gather_replicated(x.clone(), 1, Cut::Contiguous, &group),
            all_to_all(x.clone(), &group),
            all_to_all_uneven(x.clone(), &even, &group),
        ];
        for y in results {
            // The leaf itself, not a node computed from it.
            assert!(y.is_require_grad());
            assert_eq!(floats(y), floats(x.clone()));
        }
        Ok::<_, CommError>(())
    })
    .unwrap();
}

#[test]
fn a_failing_collective_panics_with_its_error() {
    let outcome = run_ranks(2, Duration::from_secs(60), |group| {
        let width = 3 + group.rank();
        let x = draw([1, 1, width], 1, FloatDType::F32, &Device::flex());
        let caught = catch_unwind(AssertUnwindSafe(|| reduce_from_group(x, &group))).map(drop);
        Err::<(), CommError>(*caught.unwrap_err().downcast::<CommError>().expect("the payload is the error"))
    });
    let message = outcome.unwrap_err().to_string();
    assert!(message.contains("all_reduce") && message.contains("rank 1"), "{message}");
}
