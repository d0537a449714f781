//! Sends tokens to the ranks that hold their experts, and results back. A dropped choice, and one
//! of an identity expert, has no row.
//!
//! Rank `r` of an expert-parallel group has the `r`-th of equal runs of experts.

use bridge_dist::comm::Group;
use bridge_regions::{Cut, RowCounts, all_gather_int, all_to_all_uneven, gather_sequence, reduce_scatter_sequence};
use burn::tensor::{FloatDType, IndexingUpdateOp, Int, Tensor, TensorData};

use super::Experts;
use super::router::Routing;
use super::rows::{ExpertRows, gather_rows, with_zero_row};

/// Numbers `0..keys.len()` in the order of their keys, and how many there are of each of `num_keys`
/// keys. Stable.
fn sorted_by_key(keys: &[usize], num_keys: usize) -> (Vec<usize>, Vec<usize>) {
    let mut counts = vec![0; num_keys];
    keys.iter().for_each(|key| counts[*key] += 1);
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by_key(|place| keys[*place]);
    (order, counts)
}

/// The permutation that undoes `order`.
fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(place, number)| inverse[*number] = place);
    inverse
}

/// Weighted sums of the chosen experts' results, `[n, c]` -> the same: each row is sent to the rank
/// of its expert.
pub(super) fn all_to_all(x_nc: Tensor<2>, routing: Routing, group: &Group, experts: &Experts) -> Tensor<2> {
    let Routing { weights_nk, experts_nk, num_experts } = routing;
    let ([n, c], [_, k]) = (x_nc.dims(), weights_nk.dims());
    // Choices without a row come last.
    let (order, counts) = sorted_by_key(&experts_nk, num_experts + 2);
    let counts = &counts[..num_experts];
    let kept = counts.iter().sum();
    let tokens: Vec<usize> = order[..kept].iter().map(|place| place / k).collect();
    let place_of = inverse(&order);
    let weights_nk = weights_nk.cast(FloatDType::from(x_nc.dtype()));
    let choice_weights = weights_nk.clone().reshape([n * k, 1]);
    let y_mc = if group.size() == 1 {
        let of_rows = |ids: &[usize], count| ExpertRows::new(ids, counts, count, experts.min_rows_per_expert());
        let rows = of_rows(&tokens, n);
        let x_mc = experts.weighted(rows.gather(x_nc), || of_rows(&order[..kept], n * k).gather(choice_weights));
        let results = experts.forward(x_mc, rows.counts());
        results_of_choices(results, &place_of, kept, |index| rows.place(index))
    } else {
        let x_mc = experts.weighted(gather_rows(x_nc, &tokens), || gather_rows(choice_weights, &order[..kept]));
        let results = exchange(x_mc, counts, group, experts);
        results_of_choices(results, &place_of, kept, |index| index)
    };
    let y_nkc: Tensor<3> = y_mc.reshape([n, k, c]);
    let y_nkc = if experts.weighted_inputs { y_nkc } else { y_nkc * weights_nk.reshape([n, k, 1]) };
    y_nkc.sum_dim(1).reshape([n, c])
}

/// The result of each choice; zeros for those without a row, which are not among the first `kept`
/// by expert.
fn results_of_choices(results: Tensor<2>, place_of: &[usize], kept: usize, row: impl Fn(usize) -> usize) -> Tensor<2> {
    let [rows, _] = results.dims();
    let places: Vec<usize> = place_of.iter().map(|index| if *index < kept { row(*index) } else { rows }).collect();
    gather_rows(if kept < place_of.len() { with_zero_row(results) } else { results }, &places)
}

/// Rows in the order of all experts to their ranks, through the experts, and back.
fn exchange(rows: Tensor<2>, counts: &[usize], group: &Group, experts: &Experts) -> Tensor<2> {
    let each = counts.len() / group.size();
    // From each rank, in rank order, the number of rows for each expert here.
    let sending: Vec<i64> = counts.iter().map(|count| *count as i64).collect();
    let mut receiving = vec![0_i64; sending.len()];
    if let Err(error) = group.all_to_all((&sending).into(), (&mut receiving).into()) {
        std::panic::panic_any(error);
    }
    let receiving: Vec<usize> = receiving.into_iter().map(|count| count as usize).collect();
    let by_rank = |counts: &[usize]| counts.chunks(each).map(|chunk| chunk.iter().sum()).collect();
    let row_counts = RowCounts { send: by_rank(counts), receive: by_rank(&receiving) };
    let received = all_to_all_uneven(rows, &row_counts, group);
    // Rows arrive by rank and then by expert, and must be sorted by expert.
    let keys: Vec<usize> =
        receiving.iter().enumerate().flat_map(|(place, count)| std::iter::repeat_n(place % each, *count)).collect();
    let (order, expert_counts) = sorted_by_key(&keys, each);
    let rows = ExpertRows::new(&order, &expert_counts, keys.len(), experts.min_rows_per_expert());
    let results = experts.forward(rows.gather(received), rows.counts());
    let places: Vec<usize> = inverse(&order).into_iter().map(|index| rows.place(index)).collect();
    all_to_all_uneven(gather_rows(results, &places), &row_counts.reversed(), group)
}

/// Sum over the identity experts that each token has chosen: its row times their weights.
pub(super) fn identities(x_nc: Tensor<2>, routing: &Routing) -> Tensor<2> {
    let is_identity = |expert: &usize| f32::from(u8::from(*expert > routing.num_experts));
    let mask: Vec<f32> = routing.experts_nk.iter().map(is_identity).collect();
    let weights_nk = routing.weights_nk.clone();
    let mask_nk = Tensor::from_data(TensorData::new(mask, weights_nk.dims()), &weights_nk.device().without_autodiff());
    let dtype = FloatDType::from(x_nc.dtype());
    x_nc * (weights_nk * mask_nk).sum_dim(1).cast(dtype)
}

/// The routing of all ranks' tokens, on every rank.
pub(super) fn gather_routing(routing: Routing, group: &Group) -> Routing {
    if group.size() == 1 {
        return routing;
    }
    let Routing { weights_nk, experts_nk, num_experts } = routing;
    let device = weights_nk.device().without_autodiff();
    let experts_nk: Vec<i64> = experts_nk.into_iter().map(|expert| expert as i64).collect();
    let experts_nk = Tensor::<2, Int>::from_data(TensorData::new(experts_nk, weights_nk.dims()), &device);
    let experts_nk = all_gather_int(experts_nk, 0, Cut::Contiguous, group).into_data();
    Routing {
        weights_nk: gather_sequence(weights_nk, 0, group),
        experts_nk: experts_nk.iter::<i64>().map(|expert| expert as usize).collect(),
        num_experts,
    }
}

/// As [`all_to_all`], with all ranks' tokens on every rank: the outputs of the ranks' experts are
/// reduce-scattered.
pub(super) fn all_gather(x_nc: Tensor<2>, routing: Routing, group: &Group, experts: &Experts) -> Tensor<2> {
    if group.size() == 1 {
        return all_to_all(x_nc, routing, group, experts);
    }
    let device = x_nc.device().without_autodiff();
    let x_nc = gather_sequence(x_nc, 0, group);
    let Routing { weights_nk, experts_nk: chosen, num_experts } = gather_routing(routing, group);
    let ([all, c], [_, k]) = (x_nc.dims(), weights_nk.dims());
    let each = num_experts / group.size();
    let (order, counts) = sorted_by_key(&chosen, num_experts + 2);
    let own = group.rank() * each..(group.rank() + 1) * each;
    let start: usize = counts[..own.start].iter().sum();
    let counts = &counts[own];
    let choices = &order[start..start + counts.iter().sum::<usize>()];
    let tokens: Vec<usize> = choices.iter().map(|choice| choice / k).collect();
    let token_rows = ExpertRows::new(&tokens, counts, all, experts.min_rows_per_expert());
    let weight_rows = ExpertRows::new(choices, counts, all * k, experts.min_rows_per_expert());
    // A padding row of an idle expert has weight zero, so the token that it is added to does not
    // matter.
    let mut targets = vec![0_i64; token_rows.counts().iter().sum()];
    tokens.iter().enumerate().for_each(|(index, token)| targets[token_rows.place(index)] = *token as i64);
    let weights_m1 = weight_rows.gather(weights_nk.reshape([all * k, 1])).cast(FloatDType::from(x_nc.dtype()));
    let x_mc = experts.weighted(token_rows.gather(x_nc), || weights_m1.clone());
    let results = experts.forward(x_mc, token_rows.counts());
    let results = if experts.weighted_inputs { results } else { results * weights_m1 };
    let rows = targets.len();
    let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [rows]), &device);
    let sums = Tensor::zeros([all, c], (&results.device(), results.dtype()));
    let sums = sums.select_assign(0, targets, results, IndexingUpdateOp::Add);
    reduce_scatter_sequence(sums, 0, group)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn identity_experts_return_their_input_times_their_weights() {
        let device = Device::flex().autodiff();
        let tensor = |seed, shape: [usize; 2]| {
            let values = bridge_kernels::Philox::new(seed).normal(shape.iter().product(), 1.0);
            Tensor::<2>::from_data(TensorData::new(values, shape), &device).require_grad()
        };
        let floats = |x: Tensor<2>| x.into_data().try_into_vec::<f32>().unwrap();
        let (x_nc, weights_nk, seed_nc) = (tensor(1, [3, 5]), tensor(2, [3, 2]), tensor(3, [3, 5]));
        // With four experts, 4 is a dropped choice and 5 is one of an identity expert.
        let routing = Routing { weights_nk: weights_nk.clone(), experts_nk: vec![5, 0, 4, 3, 5, 5], num_experts: 4 };
        let y_nc = identities(x_nc.clone(), &routing);
        let [x, w, seed] = [&x_nc, &weights_nk, &seed_nc].map(|x| floats(x.clone()));
        let factors = [w[0], 0.0, w[4] + w[5]];
        let rows = |x: &[f32]| -> Vec<f32> { x.iter().enumerate().map(|(i, x)| x * factors[i / 5]).collect() };
        assert_eq!(floats(y_nc.clone()), rows(&x));
        let gradients = (y_nc * seed_nc).sum().backward();
        assert_eq!(floats(x_nc.grad(&gradients).unwrap()), rows(&seed));
        let dot = |row: usize| -> f32 { (5 * row..5 * row + 5).map(|i| x[i] * seed[i]).sum() };
        let expected = [dot(0), 0.0, 0.0, 0.0, dot(2), dot(2)];
        let found = floats(weights_nk.grad(&gradients).unwrap());
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}, expected {expected:?}");
    }

    #[test]
    fn sorting_is_stable_and_has_an_inverse() {
        let (order, counts) = sorted_by_key(&[2, 0, 2, 0, 3], 5);
        assert_eq!((order.as_slice(), counts.as_slice()), ([1, 3, 0, 2, 4].as_slice(), [2, 0, 2, 1, 0].as_slice()));
        let inverse = inverse(&order);
        assert!(order.iter().enumerate().all(|(place, number)| inverse[*number] == place));
    }
}
