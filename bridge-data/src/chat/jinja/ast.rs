//! Syntax tree of a template.

use std::sync::Arc;

use num_bigint::BigInt;

/// Number of a name in [`super::Template::names`].
pub(super) type Name = u32;

#[derive(Debug)]
pub(super) enum Stmt {
    Text(Arc<str>),
    Print(Expr, u32),
    For(Arc<For>),
    /// Conditions with their bodies, and the body of `else`.
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>, u32),
    Set(Target, Expr, u32),
    SetBlock(Box<SetBlock>),
    With(Vec<(Target, Expr)>, Vec<Stmt>, u32),
    Filter(Vec<Filter>, Vec<Stmt>, u32),
    Macro(Arc<Macro>),
    Call(Box<CallBlock>),
    /// `{% generation %}`: text that the assistant generates.
    Generation(Vec<Stmt>),
    Autoescape(Expr, Vec<Stmt>, u32),
    /// `{% block %}`, which is rendered where it stands.
    Block(Vec<Stmt>),
    Break,
    Continue,
    /// Statement that needs other templates, which are not available.
    NoLoader(u32),
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) iter: Expr,
    pub(super) filter: Option<Expr>,
    pub(super) is_recursive: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
    pub(super) line: u32,
}

#[derive(Debug)]
pub(super) struct SetBlock {
    pub(super) target: Target,
    pub(super) filters: Vec<Filter>,
    pub(super) body: Vec<Stmt>,
    pub(super) line: u32,
}

#[derive(Debug)]
pub(super) struct CallBlock {
    pub(super) call: Expr,
    pub(super) caller: Arc<Macro>,
    pub(super) line: u32,
}

/// A macro, or the body of a call block.
#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Name,
    pub(super) args: Vec<Name>,
    /// Defaults of the last arguments.
    pub(super) defaults: Vec<Expr>,
    pub(super) body: Vec<Stmt>,
    pub(super) uses_caller: bool,
    pub(super) uses_varargs: bool,
    pub(super) uses_kwargs: bool,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(Name),
    Attribute(Name, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i64),
    Big(BigInt),
    Float(f64),
    Text(Arc<str>),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    /// Operators of one precedence, from left to right.
    Math(Box<Expr>, Vec<(Math, Expr)>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// Value, condition, other value.
    If(Box<(Expr, Expr, Option<Expr>)>),
    Attribute(Box<Expr>, Arc<str>),
    Item(Box<(Expr, Expr)>),
    Slice(Box<(Expr, Option<Expr>, Option<Expr>, Option<Expr>)>),
    Call(Box<(Expr, Args)>, u32),
    Filter(Box<Expr>, Box<Filter>),
    Test(Box<Expr>, Box<Filter>),
}

/// A filter or test with its arguments.
#[derive(Debug)]
pub(super) struct Filter {
    pub(super) name: Arc<str>,
    pub(super) args: Args,
    pub(super) line: u32,
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Arc<str>, Expr)>,
    pub(super) more: Option<Expr>,
    pub(super) more_named: Option<Expr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Math {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}
