//! Moves from host memory to host memory: order, values and gradients bit for bit, numbers of
//! moves, and freed memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;

use burn::backend::Flex;
use burn::tensor::{Device, FloatDType};

use super::readers::THREADS;
use super::*;
use crate::flex::Values;
use crate::vjp::{Lift, attach_all, attach_some};
use crate::{
    Activation, AttentionOptions, Philox, activation, attention, glu, layer_norm, linear, linear_of_glu, rms_norm,
};

fn random<const D: usize>(name: &str, shape: [usize; D], dtype: FloatDType) -> Tensor<D> {
    let values = Philox::new(7).derive_name(name).normal(shape.iter().product(), 0.5);
    Tensor::<1>::from_floats(values.as_slice(), &Device::flex().autodiff()).reshape(shape).cast(dtype)
}

fn bits<const D: usize>(x: Tensor<D>) -> Vec<u32> {
    x.cast(FloatDType::F32).into_data().iter::<f32>().map(f32::to_bits).collect()
}

fn everything() -> Offloader {
    Offloader::new(Moves::FromElements(1), Devices::All)
}

/// Bytes of `elements` elements of a dtype.
fn bytes(elements: usize, dtype: FloatDType) -> u64 {
    (elements * if dtype == FloatDType::F32 { 4 } else { 2 }) as u64
}

/// Batch, tokens, heads, elements of a head, width, inner width.
const B: usize = 2;
const T: usize = 7;
const H: usize = 3;
const D: usize = 5;
const C: usize = H * D;
const F: usize = 11;

/// A layer of most operations; each half in a scope, if there is an offloader.
fn layer(x: Tensor<3>, weights: &[Tensor<2>], offloader: Option<&Offloader>) -> Tensor<3> {
    let dtype = FloatDType::from(x.dtype());
    let run = |work: &dyn Fn() -> Tensor<3>| match offloader {
        Some(offloader) => offloader.scope(work),
        None => work(),
    };
    let ones = |size: usize| Tensor::<1>::ones([size], &Device::flex().autodiff()).cast(dtype);
    let attended = run(&|| {
        let normed = rms_norm(x.clone(), ones(C), 1e-5);
        let [q, k, v] = [0, 1, 2].map(|i| linear(normed.clone(), weights[i].clone(), None).reshape([B, T, H, D]));
        let y = attention(q, k, v, &AttentionOptions::causal(D)).reshape([B, T, C]);
        x.clone() + linear(y, weights[3].clone(), None)
    });
    run(&|| {
        let normed = layer_norm(attended.clone(), ones(C), Some(ones(C)), 1e-5);
        let inner = linear(normed.clone(), weights[4].clone(), Some(ones(2 * F)));
        let first = linear(glu(inner.clone(), Activation::Silu), weights[5].clone(), None);
        let again = linear_of_glu(inner, Activation::Silu, weights[5].clone(), None);
        let plain = linear(activation(normed, Activation::GeluTanh), weights[3].clone(), None);
        attended.clone() + first + again + plain
    })
}

/// Output and gradients of the input and of all weights. With an offloader backward begins when all
/// is on the host, or at once.
fn results(dtype: FloatDType, offloader: Option<&Offloader>, waits: bool) -> Vec<Vec<u32>> {
    let shapes = [[C, C], [C, C], [C, C], [C, C], [2 * F, C], [C, F]];
    let named = |(i, shape): (usize, [usize; 2])| random(&format!("weight {i}"), shape, dtype).require_grad();
    let weights: Vec<Tensor<2>> = shapes.into_iter().enumerate().map(named).collect();
    let leaf = random("x", [B, T, C], dtype).require_grad();
    let y = layer(leaf.clone() * 1.5, &weights, offloader);
    if let Some(offloader) = offloader.filter(|_| waits) {
        offloader.settle();
    }
    let mut gradients = (y.clone() * random("dy", [B, T, C], dtype)).sum().backward();
    let mut all = vec![bits(y), bits(leaf.grad_remove(&mut gradients).unwrap())];
    all.extend(weights.iter().map(|weight| bits(weight.grad_remove(&mut gradients).unwrap())));
    all
}

#[test]
fn no_bit_changes() {
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        let expected = results(dtype, None, false);
        assert!(expected.iter().all(|values| values.iter().any(|bits| bits << 1 != 0)));
        for waits in [true, false] {
            let offloader = everything();
            assert!(results(dtype, Some(&offloader), waits) == expected, "{dtype:?}, {waits}");
            let moved = offloader.moved();
            assert_eq!(moved.staying, 0);
            if waits {
                assert_eq!(moved.returned, moved.bytes, "{dtype:?}: all was on the host, and is asked for");
            }
        }
    }
}

/// The sizes say that no weight is among it, and that a norm's output, which three products keep,
/// is moved once.
#[test]
fn activations_are_moved_once_and_parameters_never() {
    let offloader = everything();
    results(FloatDType::F32, Some(&offloader), true);
    let stream = B * T * C;
    // The stream, its norm, queries, keys, values and their output; the stream, its norm, both
    // inputs of products, the inner one twice, of which the gate's is the same.
    let first = 6 * stream;
    let second = 3 * stream + 2 * F * B * T + F * B * T;
    let moved = offloader.moved();
    assert_eq!((moved.bytes, moved.tensors), (bytes(first + second, FloatDType::F32), 11));
}

/// A tensor is known in any shape, and not by its memory alone once the scope is over.
#[test]
fn shapes_of_one_tensor_are_one() {
    let offloader = everything();
    let x = random("x", [2, 3, 4], FloatDType::F32).without_autodiff();
    let kept = offloader.scope(|| {
        [
            Kept::from_tensor(&x),
            Kept::from_tensor(&x.clone().reshape([6, 4])),
            Kept::from_tensor(&x.clone().narrow(0, 0, 1)),
        ]
    });
    assert_eq!(offloader.moved().tensors, 2, "a part of it is another");
    offloader.settle();
    let [whole, flat, part] = kept;
    assert_eq!(flat.into_tensor::<2>().dims(), [6, 4]);
    assert_eq!(bits(whole.into_tensor::<3>()), bits(x.clone()));
    assert_eq!(bits(part.into_tensor::<3>()), bits(x.clone().narrow(0, 0, 1)));
    let _kept = offloader.scope(|| Kept::from_tensor(&x));
    assert_eq!(offloader.moved().tensors, 3, "another scope moves it again");
}

/// An operation that keeps two tensors, with two outputs and two inputs: `(x y, x + y)`.
fn product_and_sum(x: &Tensor<2>, y: &Tensor<2>) -> [Tensor<2>; 2] {
    let [plain_x, plain_y] = [x, y].map(|x| x.clone().without_autodiff());
    let kept = [&plain_x, &plain_y].map(Kept::from_tensor);
    let outputs = vec![(plain_x.clone() * plain_y.clone()).into_dispatch(), (plain_x + plain_y).into_dispatch()];
    let inputs = vec![x.clone().into_dispatch(), y.clone().into_dispatch()];
    let outputs = attach_all(outputs, inputs, move |gradients| {
        let [x, y] = kept.map(Kept::into_tensor::<2>);
        let [product, sum] = <[_; 2]>::try_from(gradients).unwrap().map(|g| Tensor::<2>::from_dispatch(g.unwrap()));
        vec![Some((product.clone() * y + sum.clone()).into_dispatch()), Some((product * x + sum).into_dispatch())]
    });
    <[_; 2]>::try_from(outputs).unwrap().map(Tensor::from_dispatch)
}

#[test]
fn operations_may_have_several_outputs_and_keep_several_tensors() {
    let run = |offloader: Option<&Offloader>| {
        let [x, y] = ["x", "y"].map(|name| random(name, [3, 5], FloatDType::F32).require_grad());
        let op = || product_and_sum(&x, &y);
        let [product, sum] = offloader.map_or_else(op, |offloader| offloader.scope(op));
        if let Some(offloader) = offloader {
            offloader.settle();
        }
        let mut gradients = (product * sum).sum().backward();
        [x, y].map(|leaf| bits(leaf.grad_remove(&mut gradients).unwrap()))
    };
    let offloader = everything();
    assert_eq!(run(Some(&offloader)), run(None));
    assert_eq!(offloader.moved().returned, bytes(30, FloatDType::F32));
}

/// Number of handles to the memory of a tensor.
fn owners(memory: &Arc<burn::tensor::Bytes>) -> usize {
    Arc::strong_count(memory)
}

#[test]
fn memory_is_released_when_it_is_read_and_when_its_pullback_is_dropped() {
    let offloader = everything();
    let x = random("x", [5, 7], FloatDType::F32).without_autodiff();
    let memory = Values::from_tensor(&x).unwrap().0.data_arc();
    let kept = offloader.scope(move || Kept::from_tensor(&x));
    offloader.settle();
    assert_eq!(owners(&memory), 1, "the test's own");
    let KeptTensor::Offloaded(entry, _) = &kept.place else { panic!("it is moved") };
    let (entry, scope) = (Arc::downgrade(entry), Arc::downgrade(&entry.shared_scope()));
    drop(kept);
    assert!(entry.upgrade().is_none() && scope.upgrade().is_none());

    // Before it is read, and inside a graph whose backward never comes.
    let x = random("x", [5, 7], FloatDType::F32).require_grad();
    let weight = random("weight", [3, 7], FloatDType::F32).require_grad();
    let memory = Values::from_tensor(&x).unwrap().0.data_arc();
    let y = offloader.scope(|| linear(x.clone(), weight, None));
    drop((x, y));
    offloader.settle();
    assert_eq!(owners(&memory), 1);
}

#[test]
fn what_cannot_be_read_is_told_where_it_is_needed() {
    let x = random("x", [5, 7], FloatDType::F32).without_autodiff();
    let counters = Arc::new(Counters::default());
    let entry = Entry::new(x.into_dispatch(), Arc::default(), Arc::clone(&counters));
    Entry::read(&Arc::downgrade(&entry), |_| panic!("the cable is out"));
    let message = catch_unwind(AssertUnwindSafe(|| entry.upload())).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains("could not be moved to the host: the cable is out"), "{message}");

    let x = random("x", [5, 7], FloatDType::F32).without_autodiff();
    let entry = Entry::new(x.into_dispatch(), Arc::default(), counters);
    Entry::read(&Arc::downgrade(&entry), |_| Err("no memory".into()));
    assert!(catch_unwind(AssertUnwindSafe(|| entry.upload())).is_err());
}

/// The tensors of a scope are uploaded as soon as a tensor of the next scope is needed, and only
/// those.
#[test]
fn the_scope_before_is_brought_back_ahead() {
    let offloader = everything();
    let keep = |name: &str| {
        let x = random(name, [3, 5], FloatDType::F32).without_autodiff();
        offloader.scope(|| Kept::from_tensor(&x))
    };
    let [first, second, third] = ["first", "second", "third"].map(keep);
    offloader.settle();
    let one = bytes(15, FloatDType::F32);
    third.into_dispatch();
    offloader.settle();
    assert_eq!(offloader.moved().returned, 2 * one);
    second.into_dispatch();
    offloader.settle();
    assert_eq!(offloader.moved().returned, 3 * one);
    assert_eq!(bits(first.into_tensor::<2>()), bits(random("first", [3, 5], FloatDType::F32)));
    assert_eq!(offloader.moved().returned, 3 * one, "it was there");
}

#[test]
fn modules_and_sizes_choose() {
    let x = random("x", [3, 5], FloatDType::F32).without_autodiff();
    let other = || random("other", [3, 5], FloatDType::F32).without_autodiff();
    let modules = Offloader::new(Moves::Modules(vec![Module::AttnNorm, Module::MoeAct]), Devices::All);
    let kept = modules.scope(|| {
        let mut kept = vec![Kept::from_tensor(&other())];
        kept.push(in_module(Module::QkvLinear, || Kept::from_tensor(&other())));
        kept.push(in_module(Module::AttnNorm, || in_module(None, || Kept::from_tensor(&other()))));
        kept.extend(in_modules([Module::ExpertFc1, Module::MoeAct], || {
            [Kept::from_tensor(&other()), in_unit(|| Kept::from_tensor(&other()))]
        }));
        kept.push(in_module(Module::AttnNorm, || Kept::from_tensor(&x)));
        // A tensor that is already moved is moved for all operations that keep it.
        kept.push(Kept::from_tensor(&x));
        kept
    });
    let moved: Vec<bool> = kept.iter().map(|kept| matches!(kept.place, KeptTensor::Offloaded(..))).collect();
    assert_eq!(moved, [false, false, false, false, true, true, true]);
    let one = bytes(15, FloatDType::F32);
    let Moved { tensors, bytes, staying, .. } = modules.moved();
    assert_eq!((tensors, bytes, staying), (2, 2 * one, 4 * one));

    let large = Offloader::new(Moves::FromElements(16), Devices::All);
    let nothing = Offloader::new(Moves::Nothing, Devices::All);
    let on_host = Offloader::new(Moves::FromElements(1), Devices::Accelerators);
    for offloader in [large, nothing, on_host] {
        let kept = offloader.scope(|| Kept::from_tensor(&x));
        assert!(matches!(kept.place, KeptTensor::OnDevice(_)), "{offloader:?}");
        assert_eq!(offloader.moved(), Moved { staying: one, ..Moved::default() });
    }
}

#[test]
fn a_scope_ends_whatever_happens_in_it() {
    let (outer, inner) = (everything(), everything());
    let x = random("x", [3, 5], FloatDType::F32).without_autodiff();
    let kept = outer.scope(|| {
        let panicked =
            catch_unwind(AssertUnwindSafe(|| inner.scope(|| in_module(Module::AttnProj, || panic!("in it")))));
        assert!(panicked.is_err());
        Kept::from_tensor(&x)
    });
    assert_eq!((outer.moved().tensors, inner.moved().tensors), (1, 0));
    assert!(OPEN.with_borrow(Option::is_none));
    drop(kept);
}

/// Runs `work` while no thread reads; it keeps few tensors.
fn blocked<T>(offloader: &Offloader, work: impl FnOnce() -> T) -> T {
    let gate = Arc::new(Barrier::new(THREADS + 1));
    for _ in 0..THREADS {
        let gate = Arc::clone(&gate);
        offloader.readers().try_run(move || {
            gate.wait();
        });
    }
    let result = work();
    gate.wait();
    result
}

/// An operation whose input is not tracked has no backward, and an operation that will be
/// recomputed has none yet.
#[test]
fn what_has_no_backward_is_not_moved() {
    let offloader = everything();
    let x = Flex::lift(Values::from_vec(vec![1.0; 6], [2, 3]).0);
    let memory = Values::from_tensor(&Tensor::<2>::from_dispatch(x.clone())).unwrap().0.data_arc();
    blocked(&offloader, || {
        let y: Tensor<2> = offloader.scope(|| {
            closed(|| drop(Kept::new(x.clone())));
            let kept = Kept::new(x.clone());
            attach_some(Tensor::from_dispatch(x.clone()), vec![x], move |_: Tensor<2>| vec![Some(kept.into_dispatch())])
        });
        drop(y);
        assert_eq!((offloader.moved(), owners(&memory)), (Moved::default(), 1));
    });
    offloader.settle();
    assert_eq!(offloader.moved(), Moved::default());
}

#[test]
fn what_is_asked_for_before_it_is_read_stays() {
    let offloader = everything();
    let x = random("x", [3, 5], FloatDType::F32).without_autodiff();
    let address = crate::address_on_cpu(&x);
    let back: Tensor<2> = blocked(&offloader, || offloader.scope(|| Kept::from_tensor(&x)).into_tensor());
    offloader.settle();
    assert_eq!(crate::address_on_cpu(&back), address);
    let moved = Moved { tensors: 1, bytes: bytes(15, FloatDType::F32), ..Moved::default() };
    assert_eq!(offloader.moved(), moved);
}
