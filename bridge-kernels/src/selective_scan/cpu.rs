//! The scan on slices, forward and backward.
//!
//! A task takes a block of neighbouring channels of one sequence, token by token; a vector register
//! holds one number of the state of each of these channels. States are kept once a chunk, and
//! backward computes those inside a chunk again.

use rayon::prelude::*;

use crate::cpu::buffer::{Shared, all_filled};
use crate::cpu::simd::{exp, sigmoid, vectorised};
use crate::linear::cpu::column_sums;

/// Channels of a task.
const LANES: usize = 16;
/// Tokens of a chunk.
const CHUNK: usize = 32;

/// One number for each channel of a task.
type Lanes = [f32; LANES];

/// Sizes.
#[derive(Clone, Copy)]
pub struct Scan {
    /// Sequences.
    pub b: usize,
    /// Tokens of a sequence.
    pub t: usize,
    /// Channels.
    pub i: usize,
    /// Numbers of the state for each channel.
    pub n: usize,
}

/// The inputs on slices, see [`super::SelectiveInputs`].
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub x: &'a [f32],
    pub dt: &'a [f32],
    pub a_log: &'a [f32],
    pub b: &'a [f32],
    pub c: &'a [f32],
    pub dt_bias: &'a [f32],
    pub d: &'a [f32],
    /// The first token of each token's document, `[b, t]`.
    pub starts: &'a [usize],
}

/// Results of the forward pass.
pub struct Scanned {
    /// `[b, t, i]`.
    pub y: Vec<f32>,
    /// The states before each chunk, task by task: `[chunks, n, LANES]` each.
    pub states: Vec<f32>,
    /// The states after the last token, `[b, i, n]`.
    pub last: Vec<f32>,
}

/// Gradients of the inputs.
pub struct Gradients {
    pub x: Vec<f32>,
    pub dt: Vec<f32>,
    pub a_log: Vec<f32>,
    pub b: Vec<f32>,
    pub c: Vec<f32>,
    pub dt_bias: Vec<f32>,
    pub d: Vec<f32>,
}

/// A block of channels of a sequence, with its parameters.
struct Task {
    sequence: usize,
    /// First channel.
    first: usize,
    /// Channels, of which the last block may have fewer than lanes.
    count: usize,
    /// Decay rates, negative.
    rates: Vec<Lanes>,
    dt_bias: Lanes,
    d: Lanes,
}

/// Values of one token in the channels of a task.
struct Token {
    x: Lanes,
    /// Inputs of the softplus.
    raw: Lanes,
    dt: Lanes,
}

/// Gradients of a task's parameters.
struct OfParameters {
    rates: Vec<Lanes>,
    dt_bias: Lanes,
    d: Lanes,
}

/// Memory of a task in one chunk.
#[derive(Default)]
struct Chunk {
    tokens: Vec<Token>,
    /// The state before each token, `[tokens, n]`.
    before: Vec<Lanes>,
    /// Decays of each token, `[tokens, n]`.
    decays: Vec<Lanes>,
}

/// The elements of `row`, and zeros in the lanes behind them.
#[inline(always)]
fn lanes(row: &[f32]) -> Lanes {
    let mut lanes = [0.0; LANES];
    lanes[..row.len()].copy_from_slice(row);
    lanes
}

#[inline(always)]
fn sum(lanes: Lanes) -> f32 {
    let mut lanes = lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

impl Task {
    fn new(scan: Scan, inputs: &Inputs, index: usize) -> Self {
        let blocks = scan.blocks();
        let first = index % blocks * LANES;
        let count = LANES.min(scan.i - first);
        let rate = |number: usize| {
            let mut rates = [0.0; LANES];
            for (lane, rate) in rates[..count].iter_mut().enumerate() {
                *rate = -inputs.a_log[(first + lane) * scan.n + number].exp();
            }
            rates
        };
        let own = |vector: &[f32]| lanes(&vector[first..first + count]);
        let (dt_bias, d) = (own(inputs.dt_bias), own(inputs.d));
        Self { sequence: index / blocks, first, count, rates: (0..scan.n).map(rate).collect(), dt_bias, d }
    }

    /// Position of the task's channels of a token in `[b, t, i]`.
    #[inline(always)]
    fn place(&self, scan: Scan, token: usize) -> usize {
        (self.sequence * scan.t + token) * scan.i + self.first
    }

    /// Position of a token in `[b, t, n]`.
    #[inline(always)]
    fn row(&self, scan: Scan, token: usize) -> usize {
        (self.sequence * scan.t + token) * scan.n
    }

    /// True if the states begin anew before a token.
    #[inline(always)]
    fn begins(&self, scan: Scan, inputs: &Inputs, token: usize) -> bool {
        token > 0 && inputs.starts[self.sequence * scan.t + token] == token
    }

    #[inline(always)]
    fn token(&self, scan: Scan, inputs: &Inputs, token: usize) -> Token {
        let place = self.place(scan, token);
        let x = lanes(&inputs.x[place..place + self.count]);
        let mut raw = lanes(&inputs.dt[place..place + self.count]);
        let mut dt = [0.0; LANES];
        for lane in 0..LANES {
            raw[lane] += self.dt_bias[lane];
            dt[lane] = raw[lane].max(0.0) + (-raw[lane].abs()).exp().ln_1p();
        }
        Token { x, raw, dt }
    }

    /// Takes the states one token further.
    #[inline(always)]
    fn step(&self, token: &Token, inputs: &[f32], states: &mut [Lanes], mut decayed: impl FnMut(usize, Lanes)) {
        for (number, (state, rate)) in states.iter_mut().zip(&self.rates).enumerate() {
            let mut decay = [0.0; LANES];
            for lane in 0..LANES {
                decay[lane] = exp(token.dt[lane] * rate[lane]);
                state[lane] = decay[lane] * state[lane] + token.dt[lane] * token.x[lane] * inputs[number];
            }
            decayed(number, decay);
        }
    }
}

impl Scan {
    /// Blocks of channels.
    fn blocks(self) -> usize {
        self.i.div_ceil(LANES)
    }

    fn tasks(self) -> usize {
        self.b * self.blocks()
    }

    fn chunks(self) -> usize {
        self.t.div_ceil(CHUNK)
    }

    /// The scan, from the states `[b, i, n]` if they are given.
    pub fn forward(self, inputs: &Inputs, start: Option<&[f32]>) -> Scanned {
        let Self { b, t, i, n } = self;
        let of_task = self.chunks() * n * LANES;
        let [y, states, last] = all_filled([b * t * i, self.tasks() * of_task, b * i * n], |[y, states, last]| {
            let (y, last) = (Shared::new(y), Shared::new(last));
            states.par_chunks_mut(of_task).enumerate().for_each(|(index, kept)| {
                let task = Task::new(self, inputs, index);
                vectorised!(self.forward_task(&task, inputs, start, kept, y, last));
            });
        });
        Scanned { y, states, last }
    }

    #[inline(always)]
    fn forward_task(
        self,
        task: &Task,
        inputs: &Inputs,
        start: Option<&[f32]>,
        kept: &mut [f32],
        y: Shared,
        last: Shared,
    ) {
        let Self { i, n, .. } = self;
        let place = |lane: usize| (task.sequence * i + task.first + lane) * n;
        let mut states = vec![[0.0; LANES]; n];
        if let Some(start) = start {
            for (number, state) in states.iter_mut().enumerate() {
                for (lane, value) in state[..task.count].iter_mut().enumerate() {
                    *value = start[place(lane) + number];
                }
            }
        }
        for token in 0..self.t {
            if task.begins(self, inputs, token) {
                states.fill([0.0; LANES]);
            }
            if token.is_multiple_of(CHUNK) {
                let kept = kept[token / CHUNK * n * LANES..].chunks_exact_mut(LANES);
                states.iter().zip(kept).for_each(|(state, kept)| kept.copy_from_slice(state));
            }
            let values = task.token(self, inputs, token);
            let row = task.row(self, token);
            task.step(&values, &inputs.b[row..row + n], &mut states, |_, _| {});
            let mut output: [f32; LANES] = std::array::from_fn(|lane| task.d[lane] * values.x[lane]);
            for (state, c) in states.iter().zip(&inputs.c[row..row + n]) {
                for lane in 0..LANES {
                    output[lane] += c * state[lane];
                }
            }
            // SAFETY: no other task has these channels of the sequence.
            let y = unsafe { y.part(task.place(self, token), task.count) };
            y.copy_from_slice(&output[..task.count]);
        }
        for lane in 0..task.count {
            // SAFETY: as above.
            let last = unsafe { last.part(place(lane), n) };
            last.iter_mut().zip(&states).for_each(|(last, state)| *last = state[lane]);
        }
    }

    /// Gradients from that of the output and the states that forward kept.
    pub fn backward(self, inputs: &Inputs, states: &[f32], dy: &[f32]) -> Gradients {
        let Self { b, t, i, n } = self;
        let (of_task, of_sequence) = (self.chunks() * n * LANES, self.blocks() * t * n);
        let mut of_parameters = Vec::new();
        let sizes = [b * t * i, b * t * i, b * of_sequence, b * of_sequence];
        let [x, dt, partial_b, partial_c] = all_filled(sizes, |[x, dt, partial_b, partial_c]| {
            let (x, dt) = (Shared::new(x), Shared::new(dt));
            let tasks = states.par_chunks(of_task).zip(partial_b.par_chunks_mut(t * n));
            let tasks = tasks.zip(partial_c.par_chunks_mut(t * n)).enumerate();
            let run = |(index, ((kept, d_b), d_c)): (usize, ((&[f32], &mut [f32]), &mut [f32]))| {
                let task = Task::new(self, inputs, index);
                vectorised!(self.backward_task(&task, inputs, kept, dy, [x, dt], [d_b, d_c]))
            };
            of_parameters = tasks.map(run).collect();
        });
        // Sums over the blocks of channels of each sequence.
        let over_blocks = |partial: &[f32]| -> Vec<f32> {
            partial.chunks(of_sequence).flat_map(|sequence| column_sums(sequence, t * n)).collect()
        };
        let (mut a_log, mut dt_bias, mut d) = (vec![0.0; i * n], vec![0.0; i], vec![0.0; i]);
        for (index, found) in of_parameters.iter().enumerate() {
            let first = index % self.blocks() * LANES;
            for lane in 0..LANES.min(i - first) {
                let channel = first + lane;
                dt_bias[channel] += found.dt_bias[lane];
                d[channel] += found.d[lane];
                let of_channel = &mut a_log[channel * n..(channel + 1) * n];
                of_channel.iter_mut().zip(&found.rates).for_each(|(sum, rates)| *sum += rates[lane]);
            }
        }
        Gradients { x, dt, a_log, b: over_blocks(&partial_b), c: over_blocks(&partial_c), dt_bias, d }
    }

    #[inline(always)]
    fn backward_task(
        self,
        task: &Task,
        inputs: &Inputs,
        kept: &[f32],
        dy: &[f32],
        [d_x, d_dt]: [Shared; 2],
        [d_b, d_c]: [&mut [f32]; 2],
    ) -> OfParameters {
        let n = self.n;
        let mut found = OfParameters { rates: vec![[0.0; LANES]; n], dt_bias: [0.0; LANES], d: [0.0; LANES] };
        // Gradient of the states after the token.
        let mut d_states = vec![[0.0; LANES]; n];
        let mut chunk = Chunk::default();
        for index in (0..self.chunks()).rev() {
            let tokens = index * CHUNK..self.t.min((index + 1) * CHUNK);
            self.states_of_chunk(task, inputs, &kept[index * n * LANES..], tokens.clone(), &mut chunk);
            for (at, token) in tokens.enumerate().rev() {
                let values = &chunk.tokens[at];
                let (place, row) = (task.place(self, token), task.row(self, token));
                let dy = lanes(&dy[place..place + task.count]);
                let (mut of_x, mut of_dt, mut of_input, mut dtx) =
                    ([0.0; LANES], [0.0; LANES], [0.0; LANES], [0.0; LANES]);
                for lane in 0..LANES {
                    of_x[lane] = dy[lane] * task.d[lane];
                    found.d[lane] += dy[lane] * values.x[lane];
                    dtx[lane] = values.dt[lane] * values.x[lane];
                }
                for number in 0..n {
                    let (b, c, rate) = (inputs.b[row + number], inputs.c[row + number], &task.rates[number]);
                    let (before, decay) = (&chunk.before[at * n + number], &chunk.decays[at * n + number]);
                    let (d_state, d_rate) = (&mut d_states[number], &mut found.rates[number]);
                    let (mut of_b, mut of_c) = ([0.0; LANES], [0.0; LANES]);
                    for lane in 0..LANES {
                        let decayed = decay[lane] * before[lane];
                        of_c[lane] = dy[lane] * (decayed + dtx[lane] * b);
                        let gradient = d_state[lane] + dy[lane] * c;
                        of_b[lane] = gradient * dtx[lane];
                        of_input[lane] += gradient * b;
                        // Gradient of the logarithm of the decay.
                        let of_log = gradient * decayed;
                        of_dt[lane] += of_log * rate[lane];
                        // The derivative of the rate by its logarithm is the rate.
                        d_rate[lane] += of_log * values.dt[lane] * rate[lane];
                        d_state[lane] = gradient * decay[lane];
                    }
                    d_b[token * n + number] = sum(of_b);
                    d_c[token * n + number] = sum(of_c);
                }
                for lane in 0..LANES {
                    of_x[lane] += of_input[lane] * values.dt[lane];
                    of_dt[lane] = (of_dt[lane] + of_input[lane] * values.x[lane]) * sigmoid(values.raw[lane]);
                    found.dt_bias[lane] += of_dt[lane];
                }
                if task.begins(self, inputs, token) {
                    d_states.fill([0.0; LANES]);
                }
                for (target, values) in [(d_x, &of_x), (d_dt, &of_dt)] {
                    // SAFETY: no other task has these channels of the sequence.
                    let target = unsafe { target.part(place, task.count) };
                    target.copy_from_slice(&values[..task.count]);
                }
            }
        }
        found
    }

    /// Computes the states inside a chunk again, from that before it.
    #[inline(always)]
    fn states_of_chunk(
        self,
        task: &Task,
        inputs: &Inputs,
        kept: &[f32],
        tokens: std::ops::Range<usize>,
        chunk: &mut Chunk,
    ) {
        let n = self.n;
        chunk.tokens.clear();
        chunk.before.resize(CHUNK * n, [0.0; LANES]);
        chunk.decays.resize(CHUNK * n, [0.0; LANES]);
        let mut states: Vec<Lanes> = kept.chunks_exact(LANES).take(n).map(lanes).collect();
        for (at, token) in tokens.enumerate() {
            if task.begins(self, inputs, token) {
                states.fill([0.0; LANES]);
            }
            chunk.before[at * n..(at + 1) * n].copy_from_slice(&states);
            let values = task.token(self, inputs, token);
            let (row, decays) = (task.row(self, token), &mut chunk.decays[at * n..(at + 1) * n]);
            task.step(&values, &inputs.b[row..row + n], &mut states, |number, decay| decays[number] = decay);
            chunk.tokens.push(values);
        }
    }
}
