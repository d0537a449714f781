//! A [`ModelChunk`] from a Burn module and the declarations of its parameters.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Gradients, Int, Tensor, TensorData};

use super::{
    Batch, Boundary, BoundaryTensor, Declaration, Declarations, DelayedScalingLayer, ForwardContext, GenerationState,
    ModelBuildError, ModelChunk, Replacement, Segment, SegmentOutput,
};

/// Additions to a Burn module that make it a [`ModelChunk`]. The module's builder declares its
/// segments and parameters in a [`ChunkScope`](super::ChunkScope).
pub trait Segments: Module + 'static {
    /// See [`ModelChunk::boundary`].
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor>;

    /// See [`ModelChunk::forward_segment`].
    fn forward_segment(&self, index: usize, input: Boundary, context: &ForwardContext) -> SegmentOutput;

    /// Maps the parameters that these segments declared; others may be mapped too, and by default
    /// all are. Full sharding maps one segment after the other: a model of many parameters need not
    /// walk all of them each time.
    fn map_segments<M: ModuleMapper>(self, _segments: &BTreeSet<usize>, mapper: &mut M) -> Self {
        self.map(mapper)
    }

    /// See [`ModelChunk::logits`]. By default a model cannot generate.
    fn logits(&self, _tokens_bt: Tensor<2, Int>, _state: &mut GenerationState) -> Option<Tensor<3>> {
        None
    }

    /// See [`ModelChunk::read_source`]. By default a model has no encoder.
    fn read_source(&self, _source_bs: Tensor<2, Int>, _state: &mut GenerationState) -> Option<()> {
        None
    }

    /// See [`ModelChunk::new_state`].
    fn new_state(&self) -> GenerationState {
        GenerationState::default()
    }
}

/// A Burn module as a [`ModelChunk`], with the declarations of its parameters.
#[derive(Clone, Debug)]
pub struct ModuleChunk<M> {
    // `None` only while `update_parameters` holds the module.
    module: Option<M>,
    declarations: Arc<Declarations>,
    released: Released,
}

/// Parameters whose memory was released.
#[derive(Clone, Debug, Default)]
struct Released {
    /// Indices of the parameters.
    places: BTreeSet<usize>,
    /// Number of released parameters that each segment uses.
    in_segments: Vec<usize>,
}

impl Released {
    fn new(declarations: &Declarations) -> Self {
        let mut released = Self { in_segments: vec![0; declarations.segments().len()], ..Self::default() };
        declarations.deferred.iter().for_each(|place| released.set(declarations, *place, true));
        released
    }

    fn set(&mut self, declarations: &Declarations, place: usize, is_released: bool) {
        let changes = if is_released { self.places.insert(place) } else { self.places.remove(&place) };
        let segments = declarations.parameters()[place].segments.iter().filter(|_| changes);
        for segment in segments {
            let count = &mut self.in_segments[*segment];
            *count = if is_released { *count + 1 } else { *count - 1 };
        }
    }

    /// True if a segment, or any segment for `None`, uses one of them.
    fn is_used(&self, segment: Option<usize>) -> bool {
        segment.map_or(!self.places.is_empty(), |segment| self.in_segments[segment] > 0)
    }
}

impl<M: Segments> ModuleChunk<M> {
    /// Joins `module` to the declarations made while it was built.
    ///
    /// # Errors
    /// If a parameter of the module was not declared, or a declared parameter is missing; the error
    /// names the parameter.
    pub fn new(module: M, declarations: Declarations) -> Result<Self, ModelBuildError> {
        let mut fields = Fields::default();
        module.visit(&mut fields);
        let declarations = declarations.in_order(&fields.found)?;
        let released = Released::new(&declarations);
        Ok(Self { module: Some(module), declarations: Arc::new(declarations), released })
    }

    /// The module.
    pub fn module(&self) -> &M {
        self.module.as_ref().expect("the module is only absent inside update_parameters")
    }

    /// The chunk with its module, for hooks that know which one it has.
    ///
    /// # Errors
    /// The chunk as it was, if it has another module.
    pub fn downcast(chunk: Box<dyn ModelChunk>) -> Result<Self, Box<dyn ModelChunk>> {
        let is_one = (chunk.as_ref() as &dyn Any).is::<Self>();
        if !is_one {
            return Err(chunk);
        }
        Ok(*(chunk as Box<dyn Any>).downcast().expect("it was looked at"))
    }

    /// The chunk with its module mapped by `f`, which must keep the parameters but may change their
    /// values, of which `f` may freeze some (`Param::set_require_grad`).
    ///
    /// # Errors
    /// If the parameters are not those that were declared, by id and shape, or one that the chunk
    /// does not train would be.
    pub fn map_module(self, f: impl FnOnce(M) -> M) -> Result<Self, ModelBuildError> {
        let module = f(self.module.expect("the module is only absent inside update_parameters"));
        let mut trained = Trained::default();
        module.visit(&mut trained);
        let mut declarations = Arc::unwrap_or_clone(self.declarations);
        for (id, is_trained) in trained.0 {
            let Some(declaration) = declarations.by_id.get(&id).map(|place| &mut declarations.parameters[*place])
            else {
                continue;
            };
            if is_trained && !declaration.trainable {
                let message = "expected a frozen parameter, found one that is to be trained".to_owned();
                return Err(ModelBuildError::Parameter { name: declaration.name.clone(), message });
            }
            declaration.trainable = is_trained;
        }
        Self::new(module, declarations)
    }

    /// Panics if a released parameter that segment `index` uses, or any segment if that is `None`,
    /// would be read.
    fn check_values(&self, index: Option<usize>) {
        if !self.released.is_used(index) {
            return;
        }
        let is_used = |declaration: &&Declaration| index.is_none_or(|index| declaration.segments.contains(&index));
        let mut released = self.released.places.iter().map(|place| &self.declarations.parameters()[*place]);
        if let Some(Declaration { name, .. }) = released.find(is_used) {
            panic!("`{name}` was released and is read before it has a value again");
        }
    }

    fn visit(&self, want: Want, f: &mut dyn FnMut(&str, Option<Tensor<1>>)) {
        self.module().visit(&mut Visitor { declarations: &self.declarations, want, f });
    }

    fn change(&mut self, segments: Option<&BTreeSet<usize>>, change: Change<'_, '_>) {
        let module = self.module.take().expect("changes of parameters do not nest");
        let mut mapper = Mapper { declarations: &self.declarations, released: &mut self.released, change };
        self.module = Some(match segments {
            Some(segments) => module.map_segments(segments, &mut mapper),
            None => module.map(&mut mapper),
        });
    }
}

impl<M: Segments> ModelChunk for ModuleChunk<M> {
    fn segments(&self) -> Vec<Segment> {
        self.declarations.segments().to_vec()
    }

    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        self.module().boundary(index, batch)
    }

    fn forward_segment(&self, index: usize, input: Boundary, context: &ForwardContext) -> SegmentOutput {
        self.check_values(Some(index));
        self.declarations.pass.begin(context);
        self.module().forward_segment(index, input, context)
    }

    fn logits(&self, tokens_bt: Tensor<2, Int>, state: &mut GenerationState) -> Option<Tensor<3>> {
        self.check_values(None);
        self.declarations.pass.end();
        self.module().logits(tokens_bt, state)
    }

    fn read_source(&self, source_bs: Tensor<2, Int>, state: &mut GenerationState) -> Option<()> {
        self.check_values(None);
        self.declarations.pass.end();
        self.module().read_source(source_bs, state)
    }

    fn new_state(&self) -> GenerationState {
        self.module().new_state()
    }

    fn parameters(&self) -> &[Declaration] {
        self.declarations.parameters()
    }

    fn delayed_scaling_layers(&self) -> &[DelayedScalingLayer] {
        &self.declarations.delayed_scaling
    }

    fn visit_parameters(&self, f: &mut dyn FnMut(&str, Tensor<1>)) {
        self.visit_wanted(&|_| true, f);
    }

    fn visit_wanted(&self, wanted: &dyn Fn(&str) -> bool, f: &mut dyn FnMut(&str, Tensor<1>)) {
        self.visit(Want::Value(wanted), &mut |name, value| {
            if let Some(value) = value {
                f(name, value);
            }
        });
    }

    fn update_parameters(&mut self, f: &mut dyn FnMut(&str, Tensor<1>) -> Replacement) {
        self.change(None, Change::Update(f));
    }

    fn replace_parameters(&mut self, mut replacements: BTreeMap<&str, Replacement>) {
        let declarations = Arc::clone(&self.declarations);
        let of = |name: &&str| declarations.get(name).unwrap_or_else(|| panic!("the chunk has no parameter `{name}`"));
        let segments = replacements.keys().map(|name| of(name).segments[0]).collect();
        self.change(Some(&segments), Change::Replace(&mut replacements));
        assert!(replacements.is_empty(), "parameters that no segment has: {:?}", replacements.keys());
    }

    fn take_gradients(&self, gradients: &mut Gradients, f: &mut dyn FnMut(&str, Tensor<1>)) {
        self.visit(Want::Gradient(gradients), &mut |name, gradient| {
            if let Some(gradient) = gradient {
                f(name, gradient);
            }
        });
    }

    fn inference(&self) -> Box<dyn ModelChunk> {
        let declarations = Arc::clone(&self.declarations);
        Box::new(Self { module: Some(self.module().valid()), declarations, released: self.released.clone() })
    }
}

/// Ids, paths and shapes of a module's parameters, in its order.
#[derive(Default)]
struct Fields {
    path: Vec<String>,
    found: Vec<(ParamId, String, Vec<usize>)>,
}

impl ModuleVisitor for Fields {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found.push((param.id, self.path.join("."), param.val().dims().to_vec()));
    }
}

/// Parameters with true if they have gradients, of a module on a device with autodiff.
#[derive(Default)]
struct Trained(Vec<(ParamId, bool)>);

impl ModuleVisitor for Trained {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if tensor.device().is_autodiff() {
            self.0.push((param.id, tensor.is_require_grad()));
        }
    }
}

/// Values that a visit reads of each parameter.
enum Want<'a> {
    /// The value, of those with these names.
    Value(&'a dyn Fn(&str) -> bool),
    Gradient(&'a mut Gradients),
}

struct Visitor<'a> {
    declarations: &'a Declarations,
    want: Want<'a>,
    f: &'a mut dyn FnMut(&str, Option<Tensor<1>>),
}

impl ModuleVisitor for Visitor<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let declaration = &self.declarations.parameters()[self.declarations.by_id[&param.id]];
        let tensor = param.val();
        let wanted = match &mut self.want {
            Want::Value(wanted) if !wanted(&declaration.name) => None,
            Want::Value(_) => Some(match self.declarations.quantized.get(&param.id) {
                Some(quantized) => {
                    let plain = (&tensor.device().without_autodiff(), tensor.dtype());
                    Tensor::from_data(TensorData::from(quantized.matrix().values().as_slice()), plain)
                }
                None => flatten(tensor.without_autodiff()),
            }),
            Want::Gradient(gradients) => tensor.grad_remove(gradients).map(flatten),
        };
        (self.f)(&declaration.name, wanted);
    }
}

/// Change of parameters.
enum Change<'a, 'n> {
    Update(&'a mut dyn FnMut(&str, Tensor<1>) -> Replacement),
    Replace(&'a mut BTreeMap<&'n str, Replacement>),
}

struct Mapper<'a, 'f, 'n> {
    declarations: &'a Declarations,
    released: &'a mut Released,
    change: Change<'f, 'n>,
}

impl ModuleMapper for Mapper<'_, '_, '_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let place = self.declarations.by_id[&param.id];
        let name = self.declarations.parameters()[place].name.as_str();
        let quantized = self.declarations.quantized.get(&param.id);
        if let Some(quantized) = quantized {
            let tensor = param.val();
            let replacement = match &mut self.change {
                Change::Update(f) => {
                    f(name, super::released([tensor.shape().num_elements()], &tensor.device(), tensor.dtype()))
                }
                Change::Replace(replacements) => replacements.remove(name).unwrap_or(Replacement::Kept),
            };
            let values = match replacement {
                Replacement::Kept => return param,
                Replacement::Released => None,
                Replacement::Value(value) => Some(value),
            };
            self.released.set(self.declarations, place, values.is_none());
            quantized.set(values, self.declarations.parameters()[place].matrix());
            return param;
        }
        let is_released = self.released.places.contains(&place);
        let released = &mut *self.released;
        let mut fill = |form: Form<D>, replacement: Replacement| {
            let is_left = is_released && matches!(replacement, Replacement::Kept);
            released.set(self.declarations, place, is_left || matches!(replacement, Replacement::Released));
            form.filled(name, replacement)
        };
        match &mut self.change {
            Change::Update(f) => param.map(|tensor| {
                let form = Form::from_tensor(&tensor);
                if is_released {
                    return fill(
                        form,
                        f(name, super::released([tensor.shape().num_elements()], &tensor.device(), tensor.dtype())),
                    );
                }
                let frozen = (!form.trainable).then(|| tensor.clone());
                // Handed over, so that it can be updated in place.
                match f(name, flatten(tensor.without_autodiff())) {
                    Replacement::Kept => {
                        frozen.unwrap_or_else(|| panic!("{name} is trained: its value was handed over"))
                    }
                    replacement => {
                        drop(frozen);
                        fill(form, replacement)
                    }
                }
            }),
            Change::Replace(replacements) => match replacements.remove(name) {
                None | Some(Replacement::Kept) => param,
                Some(replacement) => param.map(|tensor| fill(Form::from_tensor(&tensor), replacement)),
            },
        }
    }
}

/// Properties of a parameter that do not change with its value.
struct Form<const D: usize> {
    dims: [usize; D],
    dtype: DType,
    device: Device,
    trainable: bool,
}

impl<const D: usize> Form<D> {
    fn from_tensor(tensor: &Tensor<D>) -> Self {
        Self {
            dims: tensor.dims(),
            dtype: tensor.dtype(),
            device: tensor.device(),
            trainable: tensor.is_require_grad(),
        }
    }

    fn filled(self, name: &str, replacement: Replacement) -> Tensor<D> {
        let replaced: Tensor<D> = match replacement {
            Replacement::Value(value) => value.reshape(self.dims),
            // `Kept` arrives here only for a released parameter, which stays released.
            Replacement::Released | Replacement::Kept => released(self.dims, &self.device, self.dtype),
        };
        debug_assert_eq!(replaced.dtype(), self.dtype, "what {name} became has another dtype");
        if self.device.is_autodiff() { replaced.autodiff().set_require_grad(self.trainable) } else { replaced }
    }
}

/// A parameter's shape without its memory: one NaN expanded to the shape, so that an undeclared use
/// makes the loss NaN. Without autodiff.
///
/// # Shapes
/// `dims`.
pub(super) fn released<const D: usize>(dims: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::<D>::full([1; D], f32::NAN, (&device.clone().without_autodiff(), dtype)).expand(dims)
}

fn flatten<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let count = tensor.shape().num_elements();
    tensor.reshape([count])
}
