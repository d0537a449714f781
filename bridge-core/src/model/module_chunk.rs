//! A [`ModelChunk`] from a Burn module: named parameters by the module's own visitor.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Int, Tensor};

use super::Placement;
use super::{
    Batch, Boundary, BoundaryTensor, ForwardContext, GenerationState, ModelChunk, ParameterInfo, ParameterRole,
    Replacement, Segment, SegmentOutput,
};

/// What a Burn module adds to become a [`ModelChunk`].
pub trait Segments: Module + 'static {
    /// See [`ModelChunk::segments`].
    fn segments(&self) -> Vec<Segment>;

    /// See [`ModelChunk::boundary`].
    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor>;

    /// See [`ModelChunk::forward_segment`].
    fn forward_segment(&self, index: usize, input: Boundary, context: &ForwardContext) -> SegmentOutput;

    /// See [`ModelChunk::logits`]. By default a model cannot generate.
    fn logits(&self, _tokens_bt: Tensor<2, Int>, _state: &mut GenerationState) -> Option<Tensor<3>> {
        None
    }

    /// See [`ModelChunk::new_state`].
    fn new_state(&self) -> GenerationState {
        GenerationState::default()
    }

    /// Whether segment `index` uses the parameter called `name`. By default every segment may use every parameter, which is always right, but
    /// keeps gradients from being reduced before backward has ended, and all parameters in memory where they could be sharded.
    fn uses_parameter(&self, _index: usize, _name: &str) -> bool {
        true
    }

    /// Role of the parameter called `name` (the module's field path).
    fn parameter_role(&self, _name: &str) -> ParameterRole {
        ParameterRole::Hidden
    }

    /// How what this rank holds of the parameter called `name` lies in the whole. The whole parameter by default.
    fn parameter_placement(&self, _name: &str) -> Placement {
        Placement::default()
    }

    /// Name under which the parameter at the module's field path `path` is known outside. The path itself by default.
    fn parameter_name(&self, path: &str) -> String {
        path.to_owned()
    }
}

/// A Burn module as a [`ModelChunk`].
#[derive(Clone, Debug)]
pub struct ModuleChunk<M> {
    // `None` only while `update_parameters` has the module in hand.
    module: Option<M>,
}

impl<M: Segments> ModuleChunk<M> {
    /// Wraps `module`.
    pub fn new(module: M) -> Self {
        Self { module: Some(module) }
    }

    /// The module.
    pub fn module(&self) -> &M {
        self.module.as_ref().expect("the module is only absent inside update_parameters")
    }
}

impl<M: Segments> ModelChunk for ModuleChunk<M> {
    fn segments(&self) -> Vec<Segment> {
        self.module().segments()
    }

    fn boundary(&self, index: usize, batch: &Batch) -> Vec<BoundaryTensor> {
        self.module().boundary(index, batch)
    }

    fn forward_segment(&self, index: usize, input: Boundary, context: &ForwardContext) -> SegmentOutput {
        self.module().forward_segment(index, input, context)
    }

    fn logits(&self, tokens_bt: Tensor<2, Int>, state: &mut GenerationState) -> Option<Tensor<3>> {
        self.module().logits(tokens_bt, state)
    }

    fn new_state(&self) -> GenerationState {
        self.module().new_state()
    }

    fn parameters(&self) -> Vec<ParameterInfo> {
        let module = self.module();
        let mut list = Vec::new();
        let mut on_parameter = |name: &str, parameter: Visited| {
            list.push(ParameterInfo {
                name: name.to_owned(),
                shape: parameter.shape,
                placement: module.parameter_placement(name),
                role: module.parameter_role(name),
                trainable: parameter.trainable,
            });
        };
        visit(module, Want::Shape, &mut on_parameter);
        list
    }

    fn segment_parameters(&self, index: usize) -> Vec<String> {
        let module = self.module();
        names(module).into_iter().filter(|name| module.uses_parameter(index, name)).collect()
    }

    fn visit_parameters(&self, f: &mut dyn FnMut(&str, Tensor<1>)) {
        visit(self.module(), Want::Value, &mut |name, parameter| {
            f(name, parameter.value.expect("values were asked for"));
        });
    }

    fn update_parameters(&mut self, f: &mut dyn FnMut(&str, Tensor<1>) -> Replacement) {
        let module = self.module.take().expect("update_parameters does not nest");
        let names = names(&module);
        let mut updater = Updater { names: names.into_iter(), f };
        self.module = Some(module.map(&mut updater));
    }

    fn replace_parameters(&mut self, f: &mut dyn FnMut(&str) -> Option<Replacement>) {
        let module = self.module.take().expect("replace_parameters does not nest");
        let names = names(&module);
        self.module = Some(module.map(&mut Replacer { names: names.into_iter(), f }));
    }

    fn take_gradients(&self, gradients: &mut Gradients, f: &mut dyn FnMut(&str, Tensor<1>)) {
        visit(self.module(), Want::Gradient(gradients), &mut |name, parameter| {
            if let Some(gradient) = parameter.value {
                f(name, gradient);
            }
        });
    }

    fn inference(&self) -> Box<dyn ModelChunk> {
        Box::new(Self::new(self.module().valid()))
    }
}

/// What a visit should bring along.
enum Want<'a> {
    Shape,
    Value,
    Gradient(&'a mut Gradients),
}

/// One visited parameter.
struct Visited {
    shape: Vec<usize>,
    trainable: bool,
    value: Option<Tensor<1>>,
}

struct Visitor<'a, M> {
    module: &'a M,
    path: Vec<String>,
    want: Want<'a>,
    f: &'a mut dyn FnMut(&str, Visited),
}

fn visit<M: Segments>(module: &M, want: Want, f: &mut dyn FnMut(&str, Visited)) {
    module.visit(&mut Visitor { module, path: Vec::new(), want, f });
}

fn names<M: Segments>(module: &M) -> Vec<String> {
    let mut names = Vec::new();
    visit(module, Want::Shape, &mut |name, _| names.push(name.to_owned()));
    names
}

impl<M: Segments> ModuleVisitor for Visitor<'_, M> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.module.parameter_name(&self.path.join("."));
        let tensor = param.val();
        let value = match &mut self.want {
            Want::Shape => None,
            Want::Value => Some(flatten(tensor.clone().without_autodiff())),
            Want::Gradient(gradients) => tensor.grad_remove(gradients).map(flatten),
        };
        let visited = Visited { shape: tensor.dims().to_vec(), trainable: tensor.is_require_grad(), value };
        (self.f)(&name, visited);
    }
}

struct Updater<'a> {
    // The mapper walks in the visitor's order, so names come from a visit made before.
    names: std::vec::IntoIter<String>,
    f: &'a mut dyn FnMut(&str, Tensor<1>) -> Replacement,
}

impl ModuleMapper for Updater<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.names.next().expect("visitor and mapper walk the same parameters");
        let f = &mut self.f;
        param.map(|tensor| {
            let form = Form::of(&tensor);
            form.filled(&name, f(&name, flatten(tensor.without_autodiff())))
        })
    }
}

struct Replacer<'a> {
    // As in `Updater`.
    names: std::vec::IntoIter<String>,
    f: &'a mut dyn FnMut(&str) -> Option<Replacement>,
}

impl ModuleMapper for Replacer<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.names.next().expect("visitor and mapper walk the same parameters");
        match (self.f)(&name) {
            Some(replacement) => param.map(|tensor| Form::of(&tensor).filled(&name, replacement)),
            None => param,
        }
    }
}

/// What a parameter stays, whatever its value becomes.
struct Form<const D: usize> {
    dims: [usize; D],
    dtype: DType,
    device: Device,
    trainable: bool,
}

impl<const D: usize> Form<D> {
    fn of(tensor: &Tensor<D>) -> Self {
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
            Replacement::Released => released(self.dims, &self.device, self.dtype),
        };
        debug_assert_eq!(replaced.dtype(), self.dtype, "what {name} became has another dtype");
        if self.device.is_autodiff() { replaced.autodiff().set_require_grad(self.trainable) } else { replaced }
    }
}

/// A parameter's shape without its memory: one element, seen as many, that reads as zeros. Without autodiff.
///
/// # Shapes
/// `dims`.
pub fn released<const D: usize>(dims: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::<D>::zeros([1; D], (&device.clone().without_autodiff(), dtype)).expand(dims)
}

fn flatten<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let count = tensor.shape().num_elements();
    tensor.reshape([count])
}
