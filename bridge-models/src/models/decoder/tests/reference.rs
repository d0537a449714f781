//! The decoder against a forward pass written out in float64 loops, which shares no code with it.

use std::cell::RefCell;

use super::*;
use bridge_core::config::{BlockOrder, NormPlacement, Normalization, OutputGateForm, QkNormScope};

type Rows = Vec<Vec<f64>>;

struct Model<'a> {
    config: &'a DecoderConfig,
    values: Values,
    /// Rows of the projection of each layer, for layers that share keys and values.
    projected: RefCell<BTreeMap<usize, Rows>>,
}

impl Model<'_> {
    fn row(&self, name: &str, row: usize, columns: usize) -> Vec<f64> {
        let values = &self.values[name][row * columns..(row + 1) * columns];
        values.iter().copied().map(f64::from).collect()
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let bias = self.values.get(&format!("{name}.bias"));
        let products = self.products(name, x).into_iter().enumerate();
        products.map(|(o, dot)| dot + bias.map_or(0.0, |bias| f64::from(bias[o]))).collect()
    }

    /// [`Self::linear`] without a bias.
    fn products(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = &self.values[&format!("{name}.weight")];
        weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let NormConfig { kind, epsilon, zero_centered_gamma, affine } = self.config.norm;
        let n = x.len() as f64;
        let mean = if kind == Normalization::RmsNorm { 0.0 } else { x.iter().sum::<f64>() / n };
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        let weight = if affine { self.row(&format!("{name}.weight"), 0, x.len()) } else { vec![1.0; x.len()] };
        let bias = self.values.get(&format!("{name}.bias"));
        (0..x.len())
            .map(|i| {
                let gamma = weight[i] + if zero_centered_gamma { 1.0 } else { 0.0 };
                (x[i] - mean) / (variance + epsilon).sqrt() * gamma + bias.map_or(0.0, |bias| f64::from(bias[i]))
            })
            .collect()
    }

    fn rotate(&self, head: &mut [f64], layer: usize, position: usize) {
        let PositionEmbedding::Rope(rope) = &self.config.position_embedding else {
            return;
        };
        let local = rope.windowed_base.filter(|_| self.config.window(layer).is_some());
        let percent = rope.windowed_percent.filter(|_| local.is_some()).unwrap_or(rope.percent);
        let rotated = (percent * head.len() as f64) as usize;
        let base = match &rope.scaling {
            Some(RopeScaling::Ntk { alpha }) => rope.base * alpha.powf(rotated as f64 / (rotated as f64 - 2.0)),
            _ => rope.base,
        };
        for pair in 0..rotated / 2 {
            let mut angle = position as f64 / local.unwrap_or(base).powf(2.0 * pair as f64 / rotated as f64);
            match (&rope.scaling, local) {
                (Some(RopeScaling::Linear { factor }), None) => angle /= factor,
                (Some(RopeScaling::Proportional { share }), None) if pair >= (share * rotated as f64) as usize / 2 => {
                    angle = 0.0;
                }
                (_, _) => {}
            }
            if rope.reversed {
                angle = -angle;
            }
            let (i, j) = if rope.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + rotated / 2) };
            let (a, b) = (head[i], head[j]);
            head[i] = a * angle.cos() - b * angle.sin();
            head[j] = b * angle.cos() + a * angle.sin();
        }
    }

    /// Rows of queries, keys and values, group by group, of a layer with these sizes.
    fn projected(&self, layer: usize, x: &Rows, [g, r, d]: [usize; 3]) -> Rows {
        let name = format!("decoder.layers.{layer}.self_attention");
        if self.values.contains_key(&format!("{name}.linear_qkv.weight")) {
            return x.iter().map(|x| self.linear(&format!("{name}.linear_qkv"), x)).collect();
        }
        let row = |(position, x): (usize, &Vec<f64>)| -> Vec<f64> {
            let queries = self.linear(&format!("{name}.linear_q_proj"), x);
            let heads = |group: usize| match self.config.keys_from(layer) {
                Some(source) => {
                    let end = (group + 1) * (r + 2) * d;
                    self.projected.borrow()[&source][position][end - 2 * d..end].to_vec()
                }
                None => self.linear(&format!("{name}.linear_k_proj"), x)[group * d..(group + 1) * d].repeat(2),
            };
            (0..g).flat_map(|group| [&queries[group * r * d..(group + 1) * r * d], &heads(group)].concat()).collect()
        };
        x.iter().enumerate().map(row).collect()
    }

    fn attention(&self, layer: usize, x: &Rows) -> Rows {
        let config = &*self.config.of_layer(layer);
        let (g, d, w) = (config.num_query_groups, config.kv_channels, config.value_size());
        let r = config.num_attention_heads / g;
        // Heads of a group in the projection, and the place of its key.
        let fused = config.output_gate == Some(OutputGateForm::Fused);
        let (per_group, key) = if fused { (2 * r + 2, 2 * r) } else { (r + 2, r) };
        let name = format!("decoder.layers.{layer}.self_attention");
        let head = |qkv: &[f64], position: usize, index: usize, norm: Option<&str>| {
            let (group, within) = (index / per_group, index % per_group);
            let start = group * ((key + 1) * d + w) + within * d;
            let mut head = qkv[start..start + if within == key + 1 { w } else { d }].to_vec();
            let limit = config.clip_qkv.unwrap_or(f64::INFINITY);
            let limited = |head: &mut Vec<f64>| head.iter_mut().for_each(|v| *v = v.clamp(-limit, limit));
            let Some(norm) = norm else {
                limited(&mut head);
                if config.v_l2_norm {
                    let square = head.iter().map(|v| v * v).sum::<f64>() / head.len() as f64;
                    head.iter_mut().for_each(|v| *v /= (square + config.norm.epsilon).sqrt());
                }
                return head;
            };
            // Keys of another layer have its norm.
            let of = if norm == "k_layernorm" { config.keys_from(layer).unwrap_or(layer) } else { layer };
            let name = format!("decoder.layers.{of}.self_attention");
            let rotates = !config.no_rope_layers.includes(layer);
            let normalize = |head: &mut Vec<f64>| {
                if config.qk_layernorm && config.qk_layernorm_scope == QkNormScope::Head {
                    *head = self.norm(&format!("{name}.{norm}"), head);
                }
                if config.qk_l2_norm || config.qk_layernorm_scope == QkNormScope::EachHead {
                    let n = head.len() as f64;
                    let is_centred = !config.qk_l2_norm && config.norm.kind != Normalization::RmsNorm;
                    let mean = if is_centred { head.iter().sum::<f64>() / n } else { 0.0 };
                    let variance = head.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
                    head.iter_mut().for_each(|v| *v = (*v - mean) / (variance + config.norm.epsilon).sqrt());
                }
                if config.qk_layernorm_scope == QkNormScope::EachHead {
                    let (group, within) = (index / per_group, index % per_group);
                    let number = if within < r { group * r + within } else { group };
                    let weight = self.row(&format!("{name}.{norm}.weight"), number, d);
                    head.iter_mut().zip(weight).for_each(|(v, weight)| *v *= weight);
                }
            };
            if !config.qk_layernorm_after_rope {
                normalize(&mut head);
            }
            limited(&mut head);
            if rotates {
                self.rotate(&mut head, layer, position);
            }
            if config.qk_layernorm_after_rope && rotates {
                normalize(&mut head);
            }
            let scale = config.query_scale.filter(|scale| !scale.unrotated_only || !rotates);
            if let Some(scale) = scale.filter(|_| index % per_group < r) {
                let steps = ((position + scale.first) / scale.length) as f64;
                head.iter_mut().for_each(|v| *v *= 1.0 + scale.beta * (1.0 + steps).ln());
            }
            head
        };
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let gate = |x: &[f64], qkv: &[f64], h: usize, element: usize| {
            let of_layer = |place: usize| sigmoid(self.linear(&format!("{name}.linear_gate"), x)[place]);
            match config.output_gate {
                None => 1.0,
                Some(OutputGateForm::Fused) => sigmoid(qkv[(h / r * per_group + r + h % r) * d + element]),
                Some(OutputGateForm::Element) => of_layer(h * w + element),
                Some(OutputGateForm::Head) => of_layer(h),
            }
        };
        let mut qkv = self.projected(layer, x, [g, r, d]);
        self.projected.borrow_mut().insert(layer, qkv.clone());
        if config.qk_layernorm_scope == QkNormScope::Projection {
            let queries: Vec<usize> = (0..g).flat_map(|group| (0..r).map(move |i| group * (r + 2) + i)).collect();
            let keys: Vec<usize> = (0..g).map(|group| group * (r + 2) + r).collect();
            for row in &mut qkv {
                for (norm, heads) in [("q_layernorm", &queries), ("k_layernorm", &keys)] {
                    let of_heads = || heads.iter().flat_map(|head| head * d..(head + 1) * d);
                    let all: Vec<f64> = of_heads().map(|place| row[place]).collect();
                    let normed = self.norm(&format!("{name}.{norm}"), &all);
                    of_heads().zip(normed).for_each(|(place, value)| row[place] = value);
                }
            }
        }
        let window = config.window(layer).unwrap_or(usize::MAX);
        let chunk = |position: usize| if config.window_chunks { position / window.saturating_add(1) } else { 0 };
        (0..x.len())
            .map(|i| {
                let mut out = Vec::new();
                for h in 0..config.num_attention_heads {
                    let (group, within) = (h / r, h % r);
                    let q = head(&qkv[i], i, group * per_group + within, Some("q_layernorm"));
                    let seen: Vec<usize> = (0..=i).filter(|j| i - j <= window && chunk(i) == chunk(*j)).collect();
                    let scores = seen.iter().map(|j| {
                        let k = head(&qkv[*j], *j, group * per_group + key, Some("k_layernorm"));
                        let score = q.iter().zip(&k).map(|(a, b)| a * b).sum::<f64>() * config.softmax_scale;
                        config.attention_softcap.map_or(score, |cap| cap * (score / cap).tanh())
                    });
                    let weights: Vec<f64> = scores.map(f64::exp).collect();
                    let sinks = self.values.get(&format!("{name}.core_attention.softmax_offset"));
                    let total = weights.iter().sum::<f64>() + sinks.map_or(0.0, |sinks| f64::from(sinks[h]).exp());
                    let mut y = vec![0.0; w];
                    for (j, weight) in seen.iter().zip(&weights) {
                        let v = head(&qkv[*j], *j, group * per_group + key + 1, None);
                        y.iter_mut().zip(&v).for_each(|(y, v)| *y += weight / total * v * config.value_scale);
                    }
                    out.extend((0..w).map(|element| y[element] * gate(&x[i], &qkv[i], h, element)));
                }
                self.linear(&format!("{name}.linear_proj"), &out)
            })
            .collect()
    }

    /// The stream at the end of a layer, whose vector of the token is `vector`.
    fn layer_end(&self, layer: usize, x: &[f64], vector: Option<&[f64]>) -> Vec<f64> {
        let name = |which: &str| format!("decoder.layers.{layer}.{which}");
        let mut x = x.to_vec();
        if let Some(vector) = vector {
            let gate = self.linear(&name("per_layer_input_gate"), &x);
            let gated: Vec<f64> = gate.iter().zip(vector).map(|(gate, value)| self.activation(*gate) * value).collect();
            let y = self.norm(&name("post_per_layer_input_norm"), &self.linear(&name("per_layer_projection"), &gated));
            x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        }
        if self.config.layer_scalar {
            x.iter_mut().for_each(|x| *x *= f64::from(self.values[&name("layer_scalar")][0]));
        }
        x
    }

    /// The vectors of a token for all layers, of the token's embedding `x`.
    fn per_layer_inputs(&self, id: usize, x: &[f64]) -> Option<Rows> {
        let PerLayerConfig { size, vocab_size } = self.config.per_layer?;
        let all = size * self.config.num_layers;
        let row = self.row("embedding.per_layer_embeddings.weight", if id < vocab_size { id } else { 0 }, all);
        let projected = self.linear("embedding.per_layer_projection", x);
        let vector = |(row, projected): (&[f64], &[f64])| -> Vec<f64> {
            let root = (x.len() as f64).sqrt();
            let scaled: Vec<f64> = projected.iter().map(|v| v / root).collect();
            let normed = self.norm("embedding.per_layer_layernorm", &scaled);
            normed.iter().zip(row).map(|(a, b)| (a + b * (size as f64).sqrt()) / 2_f64.sqrt()).collect()
        };
        Some(row.chunks(size).zip(projected.chunks(size)).map(vector).collect())
    }

    fn activation(&self, x: f64) -> f64 {
        match self.config.activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            other => panic!("no reference for {other:?}"),
        }
    }

    fn mlp(&self, layer: usize, x: &[f64]) -> Vec<f64> {
        let name = format!("decoder.layers.{layer}.mlp");
        let h = self.linear(&format!("{name}.linear_fc1"), x);
        let scalar = |which: &str| f64::from(self.values[&format!("{name}.activation_func.{which}")][0]);
        let softplus = |x: f64| x.exp().ln_1p();
        let act = |x: f64| match self.config.activation {
            Activation::Xielu if x > 0.0 => softplus(scalar("alpha_p")) * x * x + scalar("beta") * x,
            Activation::Xielu => {
                let slope = scalar("beta") + softplus(scalar("alpha_n"));
                slope * (x.min(scalar("eps")).exp_m1() - x) + scalar("beta") * x
            }
            _ => self.activation(x),
        };
        let f = self.config.ffn_size(layer);
        let mut h = h;
        if let Some(cutoff) = self.config.gate_cutoff(layer) {
            let mean = h[..f].iter().sum::<f64>() / f as f64;
            let variance = h[..f].iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f as f64;
            h[..f].iter_mut().for_each(|x| *x = (*x - mean - cutoff * variance.sqrt()).max(0.0));
        }
        let h: Vec<f64> = if self.config.gated_linear_unit {
            let limit = self.config.activation_clamp.unwrap_or(f64::INFINITY);
            let linear = |x: f64| x.clamp(-limit, limit) + self.config.linear_offset;
            let most = self.config.output_limits(layer)[0].unwrap_or(f64::INFINITY);
            (0..f).map(|i| act(h[i].min(limit)).min(most) * linear(h[f + i]).clamp(-most, most)).collect()
        } else {
            h.into_iter().map(act).collect()
        };
        self.linear(&format!("{name}.linear_fc2"), &h)
    }

    /// All layers of a model with several streams, and the sum of them that the head reads.
    fn through_streams(&self, x: &Rows) -> Rows {
        let (residual, n) = (self.config.residual, self.config.streams.expect("asked for").count);
        let mut x: Rows = x.iter().map(|x| x.repeat(n)).collect();
        let read = |x: &[f64], weights: &[f64]| -> Vec<f64> {
            let c = x.len() / n;
            (0..c).map(|i| (0..n).map(|stream| weights[stream] * x[stream * c + i]).sum()).collect()
        };
        for layer in 0..self.config.num_layers {
            let of_layer = |name: &str| format!("decoder.layers.{layer}.{name}");
            for (part, before, after) in [
                ("self_attention", "input_layernorm", "post_self_attention_layernorm"),
                ("mlp", "pre_mlp_layernorm", "post_mlp_layernorm"),
            ] {
                let weights: Rows =
                    x.iter().map(|x| self.stream_weights(&of_layer(&format!("{part}_hyper_connection")), x)).collect();
                let mut input: Rows = x.iter().zip(&weights).map(|(x, weights)| read(x, weights)).collect();
                if residual.norms == NormPlacement::Sandwich {
                    input = input.iter().map(|x| self.norm(&of_layer(before), x)).collect();
                }
                let y = match part {
                    "mlp" => input.iter().map(|x| self.mlp(layer, x)).collect(),
                    _ => self.attention(layer, &input),
                };
                for ((x, weights), y) in x.iter_mut().zip(&weights).zip(&y) {
                    let y = self.norm(&of_layer(after), y);
                    let (c, old) = (y.len(), x.clone());
                    for stream in 0..n {
                        for i in 0..c {
                            let kept = match weights.get(2 * n..).filter(|mix| !mix.is_empty()) {
                                Some(mix) => (0..n).map(|from| mix[from * n + stream] * old[from * c + i]).sum(),
                                None => old[stream * c + i],
                            };
                            x[stream * c + i] = kept + weights[n + stream] * residual.branch_multiplier * y[i];
                        }
                    }
                }
            }
        }
        let last = |x: &Vec<f64>| read(x, &self.stream_weights("decoder.final_hyper_connection", x));
        x.iter().map(last).collect()
    }

    /// All layers of a model whose layers read and write one of several streams, and the mean that
    /// the head reads.
    fn through_altup(&self, x: &Rows, vectors: &[Option<Rows>]) -> Rows {
        let AltUpConfig { count: n, active, .. } = self.config.altup.expect("asked for");
        let c = self.config.hidden_size;
        let like = |y: Vec<f64>, x: &[f64]| -> Vec<f64> {
            let square = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            let factor = (square(x) / square(&y).max(1e-5)).sqrt();
            y.iter().map(|y| y * factor).collect()
        };
        let of_streams = |stream: &dyn Fn(usize) -> Vec<f64>| -> Rows { (0..n).map(stream).collect() };
        // Streams of each token.
        let start = |x: &Vec<f64>| {
            of_streams(&|i| match i {
                0 => x.clone(),
                _ => like(self.linear(&format!("embedding.altup_projections.{}", i - 1), x), x),
            })
        };
        let mut tokens: Vec<Rows> = x.iter().map(start).collect();
        for layer in 0..self.config.num_layers {
            let name = |which: &str| format!("decoder.layers.{layer}.{which}");
            let weights = |which: &str, x: &[f64]| {
                let x: Vec<f64> = self.norm(&name("altup.router_norm"), x).iter().map(|x| x / c as f64).collect();
                let routed = self.linear(&name("altup.modality_router"), &x);
                self.linear(&name(which), &routed.iter().map(|x| x.tanh()).collect::<Vec<_>>())
            };
            let predict = |streams: &Rows| {
                let weights = weights("altup.prediction_coefs", &streams[active]);
                let mixed = |i: usize, e: usize| (0..n).map(|j| weights[i * n + j] * streams[j][e]).sum::<f64>();
                of_streams(&|i| (0..c).map(|e| streams[i][e] + mixed(i, e)).collect())
            };
            let predicted: Vec<Rows> = tokens.iter().map(predict).collect();
            let normed: Rows =
                predicted.iter().map(|streams| self.norm(&name("input_layernorm"), &streams[active])).collect();
            let attention = self.attention(layer, &normed);
            tokens = (0..x.len())
                .map(|t| {
                    let narrow = self.linear(&name("laurel.linear_left"), &normed[t]);
                    let wide = self.linear(&name("laurel.linear_right"), &narrow);
                    let laurel = self.norm(&name("laurel.post_laurel_norm"), &wide);
                    let attention = self.norm(&name("post_self_attention_layernorm"), &attention[t]);
                    let before = &predicted[t][active];
                    let sum = |e: usize| (before[e] + attention[e] + normed[t][e] + laurel[e]) / 2_f64.sqrt();
                    let y: Vec<f64> = (0..c).map(sum).collect();
                    let mlp = self.mlp(layer, &self.norm(&name("pre_mlp_layernorm"), &y));
                    let mlp = self.norm(&name("post_mlp_layernorm"), &mlp);
                    let y: Vec<f64> = y.iter().zip(mlp).map(|(y, mlp)| y + mlp).collect();
                    let weights = weights("altup.correction_coefs", &y);
                    let moved = |i: usize, e: usize| predicted[t][i][e] + (1.0 + weights[i]) * (y[e] - before[e]);
                    let scale = self.row(&name("altup.correct_output_scale"), 0, c);
                    let scaled: Vec<f64> = (0..c).map(|e| moved(active, e) * scale[e]).collect();
                    let vector = vectors[t].as_ref().map(|vectors| vectors[layer].as_slice());
                    let end = self.layer_end(layer, &scaled, vector);
                    let branch = |i: usize, e: usize| if i == 0 { 0.0 } else { end[e] - scaled[e] };
                    of_streams(&|i| (0..c).map(|e| moved(i, e) + branch(i, e)).collect())
                })
                .collect();
        }
        let mean = |streams: &Rows| -> Vec<f64> {
            let unembed = |i: usize| match i {
                0 => streams[0].clone(),
                _ => {
                    like(self.linear(&format!("decoder.altup_unembed_projections.{}", i - 1), &streams[i]), &streams[0])
                }
            };
            let all = of_streams(&unembed);
            (0..c).map(|e| all.iter().map(|stream| stream[e]).sum::<f64>() / n as f64).collect()
        };
        tokens.iter().map(mean).collect()
    }

    /// Weights of one token: that read, that write, that mix.
    fn stream_weights(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let streams = self.config.streams.expect("asked for");
        let (n, epsilon) = (streams.count, streams.epsilon);
        let norm = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + self.config.norm.epsilon).sqrt();
        let products = self.products(name, &x.iter().map(|x| x / norm).collect::<Vec<_>>());
        let (scale, bias) = (&self.values[&format!("{name}.scale")], &self.values[&format!("{name}.bias")]);
        let logit = |i: usize| products[i] * f64::from(scale[(i / n).min(2)]) + f64::from(bias[i]);
        let sigmoid = |i: usize| 1.0 / (1.0 + (-logit(i)).exp());
        let mut weights: Vec<f64> = (0..n).map(|i| sigmoid(i) + epsilon).collect();
        if scale.len() > 1 {
            let more = if scale.len() == 2 { epsilon } else { 0.0 };
            weights.extend((n..2 * n).map(|i| streams.output_magnitude * sigmoid(i) + more));
        }
        if scale.len() > 2 {
            let mut mix: Rows = (0..n).map(|row| (0..n).map(|i| logit(2 * n + row * n + i).exp()).collect()).collect();
            for row in &mut mix {
                let sum: f64 = row.iter().sum();
                row.iter_mut().for_each(|x| *x = *x / sum + epsilon);
            }
            for step in 0..2 * streams.sinkhorn_iterations - 1 {
                for line in 0..n {
                    let at = |i: usize| if step % 2 == 0 { (i, line) } else { (line, i) };
                    let sum: f64 = (0..n).map(|i| mix[at(i).0][at(i).1]).sum::<f64>() + epsilon;
                    (0..n).for_each(|i| mix[at(i).0][at(i).1] /= sum);
                }
            }
            weights.extend(mix.concat());
        }
        weights
    }

    fn logits(&self, ids: &[i64]) -> Vec<f32> {
        let c = self.config.hidden_size;
        let learned = self.config.position_embedding == PositionEmbedding::LearnedAbsolute;
        let mut x: Rows = ids
            .iter()
            .enumerate()
            .map(|(i, id)| {
                let mut x = self.row("embedding.word_embeddings.weight", *id as usize, c);
                x.iter_mut().for_each(|x| *x *= self.config.embedding_multiplier);
                if learned {
                    let p = self.row("embedding.position_embeddings.weight", i, c);
                    x.iter_mut().zip(p).for_each(|(x, p)| *x += p);
                }
                if self.config.embedding_norm { self.norm("embedding.layernorm", &x) } else { x }
            })
            .collect();
        let add = |x: &mut Rows, y: Rows| {
            x.iter_mut().flatten().zip(y.iter().flatten()).for_each(|(x, y)| *x += y);
        };
        let vectors: Vec<_> = ids.iter().zip(&x).map(|(id, x)| self.per_layer_inputs(*id as usize, x)).collect();
        let residual = self.config.residual;
        let scale = |x: &mut Rows, factor: f64| x.iter_mut().flatten().for_each(|x| *x *= factor);
        if self.config.streams.is_some() {
            x = self.through_streams(&x);
        } else if self.config.altup.is_some() {
            x = self.through_altup(&x, &vectors);
        }
        let has_streams = self.config.streams.is_some() || self.config.altup.is_some();
        let layers = if has_streams { 0 } else { self.config.num_layers };
        for layer in 0..layers {
            let norm = |which: &str, x: &Rows| -> Rows {
                x.iter().map(|x| self.norm(&format!("decoder.layers.{layer}.{which}"), x)).collect()
            };
            let reads = |which: &str, x: &Rows| match residual.norms {
                NormPlacement::Before | NormPlacement::Sandwich => norm(which, x),
                NormPlacement::Output | NormPlacement::Sum => x.clone(),
            };
            let output = |which: &str, mut y: Rows| {
                if matches!(residual.norms, NormPlacement::Output | NormPlacement::Sandwich) {
                    y = norm(which, &y);
                }
                scale(&mut y, residual.branch_multiplier);
                y
            };
            let mlp = |x: Rows| x.iter().map(|x| self.mlp(layer, x)).collect();
            let (after_attention, after_mlp) = ("post_self_attention_layernorm", "post_mlp_layernorm");
            let y = output(after_attention, self.attention(layer, &reads("input_layernorm", &x)));
            let before = x.clone();
            if residual.adds_to_norm {
                x = norm("input_layernorm", &x);
            }
            scale(&mut x, residual.stream_multiplier);
            add(&mut x, y);
            let y = match residual.blocks {
                BlockOrder::Sequential => {
                    if residual.norms == NormPlacement::Sum {
                        x = norm(after_attention, &x);
                    }
                    let y = output(after_mlp, mlp(reads("pre_mlp_layernorm", &x)));
                    if residual.adds_to_norm {
                        x = norm("pre_mlp_layernorm", &x);
                    }
                    scale(&mut x, residual.stream_multiplier);
                    y
                }
                BlockOrder::Parallel => output(after_mlp, mlp(reads("pre_mlp_layernorm", &before))),
                BlockOrder::ParallelSharedNorm => output(after_mlp, mlp(reads("input_layernorm", &before))),
            };
            add(&mut x, y);
            if residual.norms == NormPlacement::Sum {
                x = norm(after_mlp, &x);
            }
            let vectors = vectors.iter().map(|vectors| vectors.as_ref().map(|vectors| vectors[layer].as_slice()));
            x = x.iter().zip(vectors).map(|(x, vector)| self.layer_end(layer, x, vector)).collect();
        }
        let output =
            if self.config.share_embeddings_and_output_weights { "embedding.word_embeddings" } else { "output_layer" };
        let of_row = |x: &Vec<f64>| {
            let mut logits = self.products(output, &self.norm("decoder.final_layernorm", x));
            if let Some(bias) = self.values.get("output_layer.bias") {
                logits.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += f64::from(*bias));
            }
            logits
        };
        let logits = x.iter().flat_map(of_row);
        let factor = self.config.logit_multiplier / self.config.width_multiplier.unwrap_or(1.0);
        let logits = logits.map(|l| l * factor);
        logits.map(|l| self.config.logit_softcap.map_or(l, |cap| cap * (l / cap).tanh()) as f32).collect()
    }
}

/// Every way to join blocks to the residual stream, with norms of both kinds, biases and without.
pub fn compositions() -> Vec<DecoderConfig> {
    let mut all = Vec::new();
    for norms in [NormPlacement::Before, NormPlacement::Output, NormPlacement::Sandwich, NormPlacement::Sum] {
        for blocks in [BlockOrder::Sequential, BlockOrder::Parallel, BlockOrder::ParallelSharedNorm] {
            let residual =
                ResidualConfig { norms, blocks, branch_multiplier: 0.7, stream_multiplier: 1.2, adds_to_norm: false };
            let plain = ResidualConfig { branch_multiplier: 1.0, stream_multiplier: 1.0, ..residual };
            all.extend([DecoderConfig { residual, ..llama() }, DecoderConfig { residual: plain, ..gpt2() }]);
        }
    }
    let after_norm = ResidualConfig { adds_to_norm: true, ..ResidualConfig::default() };
    let in_sandwich = ResidualConfig { norms: NormPlacement::Sandwich, branch_multiplier: 0.7, ..after_norm };
    all.extend([DecoderConfig { residual: in_sandwich, ..llama() }, DecoderConfig { residual: after_norm, ..gpt2() }]);
    all
}

#[test]
fn layers_have_the_norms_that_their_composition_asks_for() {
    for config in compositions() {
        let chunk = build(&config);
        let norms = config.residual.layer_norms();
        let expected = [
            (norms.before_attention, "input_layernorm"),
            (norms.after_attention, "post_self_attention_layernorm"),
            (norms.before_mlp, "pre_mlp_layernorm"),
            (norms.after_mlp, "post_mlp_layernorm"),
        ];
        for (exists, norm) in expected {
            let name = format!("decoder.layers.1.{norm}.weight");
            assert_eq!(chunk.parameters().iter().any(|info| info.name == name), exists, "{name}");
        }
        assert_eq!(chunk.parameters(), config.declarations().parameters(), "an outline is in the order of the module");
    }
}

#[test]
fn logits_equal_those_of_plain_loops() {
    for config in [llama(), gpt2(), everything()]
        .into_iter()
        .chain(compositions())
        .chain(factors())
        .chain(gates())
        .chain(switches())
        .chain(streams())
        .chain(layer_ends())
        .chain(shared_keys())
    {
        let chunk = build(&config);
        let ids = tokens(11, config.vocab_size);
        let expected =
            Model { config: &config, values: values(chunk.as_ref()), projected: RefCell::default() }.logits(&ids);
        assert_close(&logits(chunk.as_ref(), &ids), &expected, 3e-5);
    }
}

#[test]
fn the_loss_is_the_masked_sum_of_the_logits_cross_entropy() {
    for config in
        [llama(), gpt2(), everything()].into_iter().chain(factors()).chain(gates()).chain(switches()).chain(streams())
    {
        let chunk = build(&config);
        let micro_batch = micro_batch(config.vocab_size);
        let batch = Batch::new(&micro_batch, &device());
        let found = loss_sum(&[chunk.as_ref()], &batch, Mode::Evaluate).into_scalar::<f32>();
        let model = Model { config: &config, values: values(chunk.as_ref()), projected: RefCell::default() };
        let mut expected = 0.0;
        for row in 0..micro_batch.batch_size {
            let at = row * micro_batch.seq_length;
            let logits = model.logits(&micro_batch.tokens[at..at + micro_batch.seq_length]);
            for (i, logits) in logits.chunks(config.vocab_size).enumerate() {
                let log_sum = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
                let target = f64::from(logits[micro_batch.labels[at + i] as usize]);
                expected += f64::from(micro_batch.loss_mask[at + i]) * (log_sum - target);
            }
        }
        assert_close(&[found], &[expected as f32], 1e-5);
    }
}

#[test]
fn gradients_equal_difference_quotients() {
    for config in [llama(), gpt2(), everything()]
        .into_iter()
        .chain(compositions())
        .chain(factors())
        .chain(gates())
        .chain(switches())
        .chain(streams())
        .chain(layer_ends())
        .chain(shared_keys())
    {
        let mut chunk = build(&config);
        let batch = Batch::new(&micro_batch(config.vocab_size), &device());
        let (_, gradients) = loss_and_gradients(chunk.as_ref(), &batch, Mode::Evaluate);
        let start = values(chunk.as_ref());
        let frozen = |name: &&String| chunk.parameters().iter().any(|info| info.name == **name && !info.trainable);
        let trained: Vec<_> = start.keys().filter(|name| !frozen(name)).collect();
        assert_eq!(gradients.keys().collect::<Vec<_>>(), trained);
        for (name, gradient) in &gradients {
            // Along the gradient itself the loss rises by the gradient's norm per unit of length.
            let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let mut loss_at = |length: f64| {
                let mut moved = start.clone();
                let along = gradient.iter().map(|g| (f64::from(*g) / norm * length) as f32);
                moved.get_mut(name).unwrap().iter_mut().zip(along).for_each(|(v, g)| *v += g);
                set_values(chunk.as_mut(), &moved);
                f64::from(loss_sum(&[chunk.as_ref()], &batch, Mode::Evaluate).into_scalar::<f32>())
            };
            // A short way where the loss is steep, which bends there too.
            let length = 5e-3_f64.min(0.1 / norm);
            let slope = (loss_at(length) - loss_at(-length)) / (2.0 * length);
            assert!((slope - norm).abs() < 0.02 * norm + 0.01, "{name}: slope {slope}, norm of the gradient {norm}");
        }
    }
}
