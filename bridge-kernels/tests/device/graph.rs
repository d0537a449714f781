//! Sequences of kernels that are recorded and replayed.

use bridge_kernels::graph::{
    GraphError, KernelGraph, MemoryAddress, add_into, copy_of, copy_of_ints, is_made_here, write_into, write_ints_into,
};
use burn::tensor::{FloatDType, Int, Tensor};

use crate::common::{device, ints, read, tensor, values};

fn plain<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
    tensor(values, shape, &device().without_autodiff())
}

#[test]
fn tensors_are_written_in_place() {
    let (old, new) = (values(1, 6 * 7), values(2, 6 * 7));
    let target = plain(&old, [6, 7]);
    let (clone, copy) = (target.clone(), copy_of(&target));
    write_into(&target, &plain(&new, [7, 6]).reshape([6, 7]));
    assert_eq!((read(clone), read(copy)), (new, old.clone()), "a clone has the memory, a copy its own");
    let target = ints(&[1, 2, 3, 4, 5], [5, 1], &device());
    let (clone, copy) = (target.clone(), copy_of_ints(&target));
    write_ints_into(&target, &ints(&[9, 8, 7, 6, 5], [5, 1], &device()));
    let numbers = |x: Tensor<2, Int>| x.into_data().iter::<i64>().collect::<Vec<_>>();
    assert_eq!((numbers(clone), numbers(copy)), (vec![9, 8, 7, 6, 5], vec![1, 2, 3, 4, 5]));
    // A sum begins with the first gradient, and not with the old content of the tensor.
    let sum = plain(&[f32::NAN; 11], [11]);
    let gradients: Vec<Vec<f32>> = (3..6).map(|seed| values(seed, 11)).collect();
    let [no, yes] = [[0.0], [1.0]].map(|keeps| plain(&keeps, [1]));
    for (gradient, keeps) in gradients.iter().zip([&no, &yes, &yes]) {
        add_into(&sum, &plain(gradient, [11]), keeps);
    }
    let expected = (0..11).map(|i| gradients[0][i] + gradients[1][i] + gradients[2][i]);
    assert_eq!(read(sum.clone()), expected.collect::<Vec<_>>());
    if device().supports_dtype(burn::tensor::DType::F16) {
        add_into(&sum, &plain(&[0.5; 11], [11]).cast(FloatDType::F16), &no);
        assert_eq!(read(sum), [0.5; 11]);
    }
}

/// A replay computes with the current values of the inputs, in the memory of the recording.
#[test]
fn a_recorded_sequence_is_replayed() {
    let (rows, columns) = (37, 53);
    let input = plain(&values(1, rows * columns), [rows, columns]);
    let weight = plain(&values(2, columns * rows), [columns, rows]);
    let keeps = plain(&[0.0], [1]);
    let result = plain(&vec![0.0; rows * rows], [rows * rows]);
    let formula = |input: &Tensor<2>| (input.clone().matmul(weight.clone()).sin() * 3.0).reshape([rows * rows]);
    let mut runs = 0;
    let graph = KernelGraph::record(&keeps, &mut || {
        runs += 1;
        add_into(&result, &formula(&input), &keeps);
        Ok::<_, GraphError>(())
    });
    let graph = graph.unwrap();
    assert!(runs > 1, "a sequence is computed before it is recorded");
    assert_eq!(read(result.clone()), read(formula(&input)), "and not when it is");
    // Memory that the sequence freed is not given to other tensors.
    let others: Vec<Tensor<1>> = (0..50).map(|i| plain(&vec![i as f32; rows * rows], [rows * rows])).collect();
    let mut sum = vec![0.0; rows * rows];
    for seed in 3..6 {
        let next = plain(&values(seed, rows * columns), [rows, columns]);
        write_into(&input, &next);
        write_into(&keeps, &plain(&[if seed == 3 { 0.0 } else { 1.0 }], [1]));
        graph.replay().unwrap();
        sum.iter_mut().zip(read(formula(&next))).for_each(|(sum, value)| *sum += value);
        assert_eq!(read(result.clone()), sum, "replay {seed}");
    }
    for (i, other) in others.into_iter().enumerate() {
        assert_eq!(read(other), vec![i as f32; rows * rows]);
    }
    assert_eq!(
        std::thread::scope(|scope| scope.spawn(|| graph.replay()).join().unwrap()),
        Err(GraphError::OtherThread)
    );
}

#[test]
fn what_reads_is_not_recorded_and_leaves_the_device_usable() {
    let keeps = plain(&[1.0], [1]);
    // The first two times that is fine.
    let reads = std::panic::catch_unwind(|| {
        KernelGraph::record::<GraphError>(&keeps, &mut || {
            assert_eq!(read(keeps.clone() + 1.0), [2.0]);
            Ok(())
        })
    });
    assert!(reads.is_err(), "{reads:?}");
    // Uploaded values would be present in the first replay only.
    let uploads = KernelGraph::record::<GraphError>(&keeps, &mut || {
        write_into(&keeps, &plain(&[3.0], [1]));
        Ok(())
    });
    assert!(cfg!(feature = "cuda") || matches!(uploads, Err(GraphError::Device(_))), "{uploads:?}");
    let panics = std::panic::catch_unwind(|| {
        let keeps = plain(&[1.0], [1]);
        KernelGraph::record::<GraphError>(&keeps, &mut || panic!("in the sequence"))
    });
    assert!(panics.is_err());
    assert_eq!(read(plain(&[1.0, 2.0], [2]) + 1.0), [2.0, 3.0]);
    let on_cpu = Tensor::<1>::zeros([1], &burn::tensor::Device::flex());
    let sequence = &mut || Ok::<_, GraphError>(());
    assert!(matches!(KernelGraph::record(&on_cpu, sequence), Err(GraphError::NoGraphs)));
}

#[test]
fn an_address_is_the_memory_and_leaves_it_to_the_tensor() {
    let x = plain(&values(1, 13), [13]);
    let address = MemoryAddress::from_tensor(&x).unwrap();
    let same = x.clone().reshape([13, 1]).reshape([13]);
    assert!(MemoryAddress::from_tensor(&same).unwrap() == address);
    drop(same);
    assert!(MemoryAddress::from_tensor(&copy_of(&x)).unwrap() != address);
    assert!(is_made_here(&x));
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| is_made_here(&x)).join().unwrap());
    assert!(!elsewhere, "another thread did not make it");
    // A sum in place of the first summand: only who has the tensor counts.
    let sum = bridge_kernels::optim::accumulate(x, plain(&values(2, 13), [13]));
    assert!(MemoryAddress::from_tensor(&sum).unwrap() == address);
}
