//! Runs the syntax tree of a template.

mod calls;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use ahash::AHashMap;

use super::Template;
use super::ast::{Expr, Filter, For, Macro, Name, Stmt, Target};
use super::error::Error;
use super::filters::filter;
use super::given::CallArguments;
use super::limits::{charge, step};
use super::methods::{attribute, subscript};
use super::operators::{compared, concat, math, signed, slice};
use super::predicates::test;
use super::scope::Scope;
use super::text::{escaped, print, printed};
use super::value::{Closure, Dict, Function, Loop, Value};
use calls::refuse_private;

/// Deepest recursion of the evaluation.
const DEPTH: u32 = 800;

/// Text that a template made.
pub(in crate::chat) struct Rendered {
    pub(in crate::chat) text: String,
    /// Bytes within `{% generation %}`, in the order in which the blocks ended.
    pub(in crate::chat) generated: Vec<Range<usize>>,
    /// Bytes that were written while a loop was at a message, in order. Bytes outside of such loops
    /// are in none.
    pub(in crate::chat) owned: Vec<Owned>,
}

/// Bytes that were written for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::chat) struct Owned {
    pub(in crate::chat) bytes: Range<usize>,
    pub(in crate::chat) message: usize,
}

/// End of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

struct Engine<'t> {
    template: &'t Template,
    root: Rc<Scope>,
    /// Numbers of the names `loop`, `caller`, `varargs` and `kwargs`, if the template mentions
    /// them.
    special: [Option<Name>; 4],
    depth: Cell<u32>,
    autoescape: Cell<bool>,
    /// Places of messages, by their addresses.
    messages: AHashMap<*const Dict, usize>,
    /// Number of captures around the current statement; text is captured for variables, filters and
    /// macros.
    captures: Cell<u32>,
    owner: Cell<Option<usize>>,
    /// Start of the current owner's bytes.
    owned_from: Cell<usize>,
    owned: RefCell<Vec<Owned>>,
    /// True within an iteration that is at no message.
    is_unowned: Cell<bool>,
    generated: RefCell<Vec<Range<usize>>>,
    /// Length of the text outside of captures when the outermost one began.
    root_length: Cell<usize>,
    /// Scopes that macros hold, and namespaces: cleared in the end, since they may hold themselves.
    held_scopes: RefCell<Vec<Rc<Scope>>>,
    held_namespaces: RefCell<Vec<Rc<RefCell<Dict>>>>,
}

/// Runs a template. `messages` are the dictionaries whose text is attributed to them. Fails on a
/// refusal of the template; a limit that is exceeded.
pub(super) fn render(
    template: &Template,
    variables: Vec<(&str, Value)>,
    messages: &[Value],
) -> Result<Rendered, Error> {
    let number = |wanted: &str| template.names.iter().position(|name| **name == *wanted).map(|at| at as Name);
    let named = variables.into_iter().filter_map(|(name, value)| Some((number(name)?, value)));
    let places = messages.iter().enumerate().filter_map(|(at, message)| match message {
        Value::Dict(dict) => Some((Rc::as_ptr(dict), at)),
        _ => None,
    });
    let globals = Scope::new(None, named.collect());
    let engine = Engine {
        template,
        root: Scope::new(Some(globals), Vec::new()),
        special: ["loop", "caller", "varargs", "kwargs"].map(number),
        depth: Cell::new(0),
        autoescape: Cell::new(false),
        messages: places.collect(),
        captures: Cell::new(0),
        owner: Cell::new(None),
        owned_from: Cell::new(0),
        owned: RefCell::default(),
        is_unowned: Cell::new(false),
        generated: RefCell::default(),
        root_length: Cell::new(0),
        held_scopes: RefCell::default(),
        held_namespaces: RefCell::default(),
    };
    let mut text = String::new();
    let made = engine.run(&template.body, &engine.root, &mut text);
    engine.own(None, text.len());
    engine.held_scopes.take().iter().for_each(|scope| scope.clear());
    engine.held_namespaces.take().iter().for_each(|namespace| namespace.borrow_mut().clear());
    made?;
    Ok(Rendered { text, generated: engine.generated.take(), owned: engine.owned.take() })
}

impl Engine<'_> {
    /// Gives the bytes from `at` on to another message.
    fn own(&self, owner: Option<usize>, at: usize) {
        if self.owner.get() == owner {
            return;
        }
        let from = self.owned_from.replace(at);
        if let Some(message) = self.owner.replace(owner)
            && from < at
        {
            self.owned.borrow_mut().push(Owned { bytes: from..at, message });
        }
    }

    /// Index of a message among those whose text is attributed.
    fn place_of(&self, value: &Value) -> Option<usize> {
        match value {
            Value::Dict(dict) => self.messages.get(&Rc::as_ptr(dict)).copied(),
            Value::Tuple(items) => items.iter().find_map(|item| self.place_of(item)),
            _ => None,
        }
    }

    fn deeper<T>(&self, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let depth = self.depth.get();
        if depth >= DEPTH {
            return Err(Error::too_much("it recurses too deep"));
        }
        self.depth.set(depth + 1);
        let made = run();
        self.depth.set(depth);
        made
    }

    /// Runs statements into a text of their own; returns it with the result of `run`.
    fn captured<T>(
        &self,
        length: usize,
        run: impl FnOnce(&mut String) -> Result<T, Error>,
    ) -> Result<(Value, T), Error> {
        let captures = self.captures.get();
        if captures == 0 {
            self.root_length.set(length);
        }
        self.captures.set(captures + 1);
        let mut text = String::new();
        let made = run(&mut text);
        self.captures.set(captures);
        let made = made?;
        Ok((if self.autoescape.get() { Value::Markup(text.into()) } else { text.into() }, made))
    }

    /// Length of the text outside of captures.
    fn length(&self, out: &str) -> usize {
        if self.captures.get() == 0 { out.len() } else { self.root_length.get() }
    }

    fn run(&self, body: &[Stmt], scope: &Rc<Scope>, out: &mut String) -> Result<Flow, Error> {
        self.deeper(|| {
            for statement in body {
                let flow = self.statement(statement, scope, out)?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    fn statement(&self, statement: &Stmt, scope: &Rc<Scope>, out: &mut String) -> Result<Flow, Error> {
        step()?;
        match statement {
            Stmt::Text(text) => {
                charge(text.len())?;
                out.push_str(text);
            }
            Stmt::Print(expr, line) => self.print(expr, scope, out).map_err(|error| error.at_line(*line))?,
            Stmt::If(branches, otherwise, line) => {
                for (condition, body) in branches {
                    if self.eval(condition, scope).map_err(|error| error.at_line(*line))?.is_true() {
                        return self.run(body, scope, out);
                    }
                }
                return self.run(otherwise, scope, out);
            }
            Stmt::For(each) => {
                let made = self.eval(&each.iter, scope).and_then(|items| self.each(each, items, scope, 0, out));
                return made.map_err(|error| error.at_line(each.line));
            }
            Stmt::Set(target, expr, line) => {
                let made = self.eval(expr, scope).and_then(|value| self.set(target, value, scope, out.len()));
                made.map_err(|error| error.at_line(*line))?;
            }
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Continue => return Ok(Flow::Continue),
            other => return self.rare_statement(other, scope, out),
        }
        Ok(Flow::Next)
    }

    #[inline(never)]
    fn rare_statement(&self, statement: &Stmt, scope: &Rc<Scope>, out: &mut String) -> Result<Flow, Error> {
        match statement {
            Stmt::SetBlock(block) => {
                let inner = Scope::new(Some(scope.clone()), Vec::new());
                let (text, flow) = self.captured(out.len(), |text| self.run(&block.body, &inner, text))?;
                // As in Python, leaving the block drops its text and assigns nothing.
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let made = self.filtered(text, &block.filters, scope);
                made.and_then(|value| self.set(&block.target, value, scope, out.len()))
                    .map_err(|error| error.at_line(block.line))?;
            }
            Stmt::With(pairs, body, line) => {
                let inner = Scope::new(Some(scope.clone()), Vec::new());
                for (target, expr) in pairs {
                    let value = self.eval(expr, scope).map_err(|error| error.at_line(*line))?;
                    self.set(target, value, &inner, out.len())?;
                }
                return self.run(body, &inner, out);
            }
            Stmt::Filter(filters, body, line) => {
                let inner = Scope::new(Some(scope.clone()), Vec::new());
                let (text, flow) = self.captured(out.len(), |text| self.run(body, &inner, text))?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let value = self.filtered(text, filters, scope).map_err(|error| error.at_line(*line))?;
                print(&value, out)?;
            }
            Stmt::Macro(code) => {
                let closure = self.closure(code, scope);
                scope.set(code.name, closure);
            }
            Stmt::Call(block) => {
                let caller = self.closure(&block.caller, scope);
                let Expr::Call(call, _) = &block.call else { return Ok(Flow::Next) };
                let made = self.eval(&call.0, scope).and_then(|callee| {
                    let mut given = self.given(&call.1, scope)?;
                    given.named.push(("caller".into(), caller));
                    self.call_into(callee, given, out)
                });
                made.map_err(|error| error.at_line(block.line))?;
            }
            Stmt::Generation(body) => {
                let (inner, start, before) = (Scope::new(Some(scope.clone()), Vec::new()), self.length(out), out.len());
                let flow = self.run(body, &inner, out)?;
                self.generated.borrow_mut().push(start..start + out.len() - before);
                return Ok(flow);
            }
            Stmt::Autoescape(enabled, body, line) => {
                let enabled = self.eval(enabled, scope).map_err(|error| error.at_line(*line))?.is_true();
                let before = self.autoescape.replace(enabled);
                let flow = self.run(body, &Scope::new(Some(scope.clone()), Vec::new()), out);
                self.autoescape.set(before);
                return flow;
            }
            Stmt::Block(body) => {
                self.run(body, &Scope::new(Some(self.root.clone()), Vec::new()), out)?;
            }
            Stmt::NoLoader(line) => {
                return Err(Error::new("no loader for this environment specified").at_line(*line));
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    fn closure(&self, code: &Arc<Macro>, scope: &Rc<Scope>) -> Value {
        self.held_scopes.borrow_mut().push(scope.clone());
        let name = |number: &Name| self.template.names[*number as usize].clone();
        let args = code.args.iter().map(name).collect();
        Value::Macro(Rc::new(Closure { code: code.clone(), name: name(&code.name), args, scope: scope.clone() }))
    }

    fn print(&self, expr: &Expr, scope: &Rc<Scope>, out: &mut String) -> Result<(), Error> {
        if let Expr::Call(call, line) = expr
            && let Expr::Name(name) = &call.0
            && let Some(callee @ Value::Macro(_)) = scope.get(*name)
        {
            let given = self.given(&call.1, scope)?;
            return self.call_into(callee, given, out).map_err(|error| error.at_line(*line));
        }
        let value = self.eval(expr, scope)?;
        self.emit(&value, out)
    }

    fn emit(&self, value: &Value, out: &mut String) -> Result<(), Error> {
        if self.autoescape.get() && !matches!(value, Value::Markup(_)) {
            let text = escaped(&printed(value)?);
            charge(text.len())?;
            out.push_str(&text);
            return Ok(());
        }
        print(value, out)
    }

    /// Writes the result of a call. The text of a macro goes directly to `out`.
    fn call_into(&self, callee: Value, given: CallArguments, out: &mut String) -> Result<(), Error> {
        match callee {
            // Code is kept alive by the template, but a caller's may be a value of the moment.
            Value::Macro(closure) => self.call_macro(&closure, given, out),
            other => {
                let value = self.call(other, given, out.len())?;
                self.emit(&value, out)
            }
        }
    }

    fn filtered(&self, mut value: Value, filters: &[Filter], scope: &Rc<Scope>) -> Result<Value, Error> {
        for each in filters {
            let given = self.given(&each.args, scope)?;
            value = filter(&each.name, &value, &given).map_err(|error| error.at_line(each.line))?;
        }
        Ok(value)
    }

    fn set(&self, target: &Target, value: Value, scope: &Rc<Scope>, at: usize) -> Result<(), Error> {
        match target {
            Target::Name(name) => {
                value.check_depth(0)?;
                if self.is_unowned.get()
                    && self.captures.get() == 0
                    && let Some(message) = self.place_of(&value)
                {
                    self.is_unowned.set(false);
                    self.own(Some(message), at);
                }
                scope.set(*name, value);
            }
            Target::Attribute(name, attribute) => match scope.get(*name) {
                Some(Value::Namespace(namespace)) => {
                    refuse_private(attribute)?;
                    value.check_depth(0)?;
                    namespace.borrow_mut().insert(Value::Text(attribute.clone()), value);
                }
                _ => return Err(Error::new("cannot assign attribute on non-namespace object")),
            },
            Target::Tuple(targets) => {
                let items = value
                    .items()
                    .map_err(|_| Error::new(format!("cannot unpack non-iterable {} object", value.type_name())))?;
                let (expected, found) = (targets.len(), items.len());
                if expected != found {
                    return Err(Error::new(format!("expected {expected} values to unpack, found {found}")));
                }
                for (target, item) in targets.iter().zip(&**items) {
                    self.set(target, item.clone(), scope, at)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a loop over items. The result is the end of its `else`, which may end a loop around.
    fn each(
        &self,
        each: &Arc<For>,
        items: Value,
        scope: &Rc<Scope>,
        depth: usize,
        out: &mut String,
    ) -> Result<Flow, Error> {
        // The tree outlives the engine: the template owns it.
        let code: &For = each;
        let mut items = items.items()?;
        if let Some(condition) = &code.filter {
            let mut kept = Vec::new();
            for item in items.iter() {
                let inner = Scope::new(Some(scope.clone()), Vec::new());
                self.bind(&code.target, item.clone(), &inner)?;
                if self.eval(condition, &inner)?.is_true() {
                    kept.push(item.clone());
                }
            }
            items = Rc::new(kept);
        }
        let repeat = code.is_recursive.then(|| (each.clone(), scope.clone()));
        let looped = Rc::new(Loop { items: items.clone(), at: Cell::new(0), depth, last: RefCell::new(None), repeat });
        let (owner, unowned) = (self.owner.get(), self.is_unowned.get());
        let mut completes = false;
        for (at, item) in items.iter().enumerate() {
            step()?;
            looped.at.set(at);
            let inner = Scope::new(Some(scope.clone()), Vec::new());
            self.bind(&code.target, item.clone(), &inner)?;
            if let Some(name) = self.special[0] {
                inner.set(name, Value::Loop(looped.clone()));
            }
            if self.captures.get() == 0 {
                let place = self.place_of(item);
                self.is_unowned.set(place.is_none());
                if place.is_some() {
                    self.own(place, out.len());
                }
            }
            let flow = self.run(&code.body, &inner, out)?;
            if self.captures.get() == 0 {
                self.own(owner, out.len());
                self.is_unowned.set(unowned);
            }
            completes |= flow == Flow::Next;
            if flow == Flow::Break {
                break;
            }
        }
        // Unlike Python's, Jinja's `else` runs if no iteration ran to its end.
        if completes {
            return Ok(Flow::Next);
        }
        self.run(&code.otherwise, &Scope::new(Some(scope.clone()), Vec::new()), out)
    }

    /// Assigns an item of a loop.
    fn bind(&self, target: &Target, item: Value, scope: &Rc<Scope>) -> Result<(), Error> {
        match target {
            Target::Name(name) => {
                scope.set(*name, item);
                Ok(())
            }
            other => self.set(other, item, scope, 0),
        }
    }

    fn eval(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Error> {
        step()?;
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Int(number) => Ok(Value::Int(*number)),
            Expr::Big(number) => Ok(Value::Big(Rc::new(number.clone()))),
            Expr::Float(number) => Ok(Value::Float(*number)),
            Expr::Text(text) => Ok(Value::Text(text.clone())),
            Expr::Name(name) => Ok(scope.get(*name).unwrap_or_else(|| self.global(*name))),
            other => self.deeper(|| self.operation(other, scope)),
        }
    }

    fn global(&self, name: Name) -> Value {
        let name = &*self.template.names[name as usize];
        Value::Function(match name {
            "range" => Function::Range,
            "dict" => Function::Dict,
            "namespace" => Function::Namespace,
            "cycler" => Function::Cycler,
            "joiner" => Function::Joiner,
            "lipsum" => Function::Lipsum,
            "raise_exception" => Function::RaiseException,
            "strftime_now" => Function::StrftimeNow,
            _ => return Value::undefined(name),
        })
    }

    fn operation(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Error> {
        match expr {
            Expr::Attribute(value, name) => attribute(&self.eval(value, scope)?, name),
            Expr::Item(pair) => {
                let value = self.eval(&pair.0, scope)?;
                subscript(&value, &self.eval(&pair.1, scope)?)
            }
            Expr::And(operands) | Expr::Or(operands) => {
                let stops_at = matches!(expr, Expr::Or(_));
                let mut value = Value::None;
                for operand in operands {
                    value = self.eval(operand, scope)?;
                    if value.is_true() == stops_at {
                        break;
                    }
                }
                Ok(value)
            }
            Expr::Not(operand) => Ok(Value::Bool(!self.eval(operand, scope)?.is_true())),
            Expr::Compare(first, operands) => {
                let mut left = self.eval(first, scope)?;
                for (comparison, operand) in operands {
                    let right = self.eval(operand, scope)?;
                    if !compared(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::Math(first, operands) => {
                let mut left = self.eval(first, scope)?;
                for (operator, operand) in operands {
                    left = math(*operator, &left, &self.eval(operand, scope)?)?;
                }
                Ok(left)
            }
            Expr::Call(call, line) => self.call_expr(call, scope).map_err(|error| error.at_line(*line)),
            Expr::Filter(value, applied) => {
                let value = self.eval(value, scope)?;
                let given = self.given(&applied.args, scope)?;
                filter(&applied.name, &value, &given).map_err(|error| error.at_line(applied.line))
            }
            Expr::Test(value, applied) => {
                let value = self.eval(value, scope)?;
                let given = self.given(&applied.args, scope)?;
                test(&applied.name, &value, &given).map(Value::Bool).map_err(|error| error.at_line(applied.line))
            }
            Expr::If(parts) => match (self.eval(&parts.1, scope)?.is_true(), &parts.2) {
                (true, _) => self.eval(&parts.0, scope),
                (false, Some(otherwise)) => self.eval(otherwise, scope),
                (false, None) => Ok(Value::Undefined("the inline if-expression has no else".into())),
            },
            other => self.rare_operation(other, scope),
        }
    }

    #[inline(never)]
    fn rare_operation(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value, Error> {
        let all = |items: &[Expr]| items.iter().map(|item| self.eval(item, scope)).collect::<Result<Vec<_>, _>>();
        match expr {
            Expr::List(items) => {
                charge(items.len() * 16)?;
                Ok(Value::list(all(items)?))
            }
            Expr::Tuple(items) => {
                charge(items.len() * 16)?;
                Ok(Value::tuple(all(items)?))
            }
            Expr::Dict(pairs) => {
                charge(pairs.len() * 32)?;
                let mut dict = Dict::default();
                for (key, value) in pairs {
                    let key = self.eval(key, scope)?;
                    if !key.is_hashable() {
                        return Err(Error::new(format!("unhashable type: '{}'", key.type_name())));
                    }
                    dict.insert(key, self.eval(value, scope)?);
                }
                Ok(Value::Dict(Rc::new(dict)))
            }
            Expr::Concat(operands) => concat(&all(operands)?),
            Expr::Neg(operand) => signed(&self.eval(operand, scope)?, true),
            Expr::Pos(operand) => signed(&self.eval(operand, scope)?, false),
            Expr::Slice(parts) => {
                let value = self.eval(&parts.0, scope)?;
                let bound = |bound: &Option<Expr>| bound.as_ref().map(|bound| self.eval(bound, scope)).transpose();
                let (start, stop, by) = (bound(&parts.1)?, bound(&parts.2)?, bound(&parts.3)?);
                let made = slice(&value, [start.as_ref(), stop.as_ref(), by.as_ref()]);
                // Jinja evaluates constants itself, and makes a failure undefined.
                let constant = |bound: &Option<Expr>| bound.as_ref().is_none_or(is_constant);
                let folds = is_constant(&parts.0) && [&parts.1, &parts.2, &parts.3].into_iter().all(constant);
                made.or_else(|error| if folds { Ok(Value::Undefined("no such slice".into())) } else { Err(error) })
            }
            _ => Ok(Value::None),
        }
    }
}

fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::None | Expr::Bool(_) | Expr::Int(_) | Expr::Big(_) | Expr::Float(_) | Expr::Text(_) => true,
        Expr::List(items) | Expr::Tuple(items) => items.iter().all(is_constant),
        Expr::Dict(pairs) => pairs.iter().all(|(key, value)| is_constant(key) && is_constant(value)),
        Expr::Neg(operand) => is_constant(operand),
        _ => false,
    }
}
