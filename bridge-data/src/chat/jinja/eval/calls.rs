//! Calls of functions, methods and macros.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::super::ast::{Args, Expr};
use super::super::error::Error;
use super::super::given::{CallArguments, integer, required, text};
use super::super::limits::charge;
use super::super::methods::{attribute, call as call_method, has_method};
use super::super::scope::Scope;
use super::super::strftime::strftime;
use super::super::text::printed;
use super::super::value::{Closure, Dict, Function, Value, range_length};
use super::Engine;

/// Most numbers of a range, as in the sandbox of Jinja2.
const LONGEST_RANGE: usize = 100_000;

impl Engine<'_> {
    pub(super) fn given(&self, args: &Args, scope: &Rc<Scope>) -> Result<CallArguments, Error> {
        let mut given = CallArguments::default();
        for arg in &args.positional {
            given.positional.push(self.eval(arg, scope)?);
        }
        for (name, arg) in &args.named {
            given.named.push((name.clone(), self.eval(arg, scope)?));
        }
        if let Some(more) = &args.more {
            let more = self.eval(more, scope)?.items()?;
            charge(more.len() * 16)?;
            given.positional.extend(more.iter().cloned());
        }
        if let Some(more) = &args.more_named {
            let Value::Dict(dict) = self.eval(more, scope)? else {
                return Err(Error::new("argument after ** must be a mapping"));
            };
            for (key, value) in dict.entries() {
                let key = key.as_text().ok_or_else(|| Error::new("keywords must be strings"))?;
                given.named.push((key.into(), value.clone()));
            }
        }
        Ok(given)
    }

    pub(super) fn call_expr(&self, call: &(Expr, Args), scope: &Rc<Scope>) -> Result<Value, Error> {
        if let Expr::Attribute(value, name) = &call.0 {
            let value = self.eval(value, scope)?;
            if has_method(&value, name) {
                return call_method(&value, name, &self.given(&call.1, scope)?);
            }
            let callee = attribute(&value, name)?;
            return self.call(callee, self.given(&call.1, scope)?, self.root_length.get());
        }
        let callee = self.eval(&call.0, scope)?;
        let given = self.given(&call.1, scope)?;
        self.call(callee, given, self.root_length.get())
    }

    /// Calls a value. `length`: bytes of the text so far.
    pub(super) fn call(&self, callee: Value, given: CallArguments, length: usize) -> Result<Value, Error> {
        match callee {
            Value::Function(function) => self.call_function(function, &given),
            Value::Method(method) => call_method(&method.0, &method.1, &given),
            Value::Macro(closure) => Ok(self.captured(length, |text| self.call_macro(&closure, given, text))?.0),
            Value::Loop(looped) => {
                let [items] = given.bind("loop", ["iterable"])?;
                let Some((each, scope)) = &looped.repeat else {
                    return Err(Error::new("the loop must have the 'recursive' marker"));
                };
                let items = required("loop", items)?;
                let run = |text: &mut String| self.deeper(|| self.each(each, items, scope, looped.depth + 1, text));
                Ok(self.captured(length, run)?.0)
            }
            Value::Joiner(joiner) => Ok(if joiner.1.replace(true) { joiner.0.clone() } else { "".into() }),
            Value::Undefined(message) => Err(Error::new(&*message)),
            other => Err(Error::new(format!("'{}' object is not callable", other.type_name()))),
        }
    }

    #[inline(never)]
    pub(super) fn call_macro(
        &self,
        closure: &Closure,
        mut given: CallArguments,
        out: &mut String,
    ) -> Result<(), Error> {
        let (code, name) = (&closure.code, &closure.name);
        let mut bound: Vec<Option<Value>> = given.positional.iter().take(code.args.len()).cloned().map(Some).collect();
        bound.resize(code.args.len(), None);
        let more = given.positional.split_off(given.positional.len().min(code.args.len()));
        let (mut others, mut caller) = (Dict::default(), None);
        for (key, value) in given.named {
            match closure.args.iter().position(|arg| *arg == key) {
                Some(at) if bound[at].is_some() => {
                    return Err(Error::new(format!("macro '{name}' got several values for argument '{key}'")));
                }
                Some(at) => bound[at] = Some(value),
                None if *key == *"caller" && code.uses_caller => caller = Some(value),
                None if code.uses_kwargs && *key != *"caller" => others.insert(Value::Text(key), value),
                None => return Err(Error::new(format!("macro '{name}' takes no keyword argument '{key}'"))),
            }
        }
        if !more.is_empty() && !code.uses_varargs {
            let most = code.args.len();
            return Err(Error::new(format!("macro '{name}' takes not more than {most} argument(s)")));
        }
        let scope = Scope::new(Some(closure.scope.clone()), Vec::new());
        let [_, caller_name, varargs, kwargs] = self.special;
        if let Some(number) =
            caller_name.filter(|_| code.uses_caller && !closure.args.iter().any(|arg| **arg == *"caller"))
        {
            scope.set(number, caller.unwrap_or_else(|| Value::Undefined("no caller defined".into())));
        }
        if let Some(number) = varargs.filter(|_| code.uses_varargs) {
            scope.set(number, Value::tuple(more));
        }
        if let Some(number) = kwargs.filter(|_| code.uses_kwargs) {
            scope.set(number, Value::Dict(Rc::new(others)));
        }
        let without = code.args.len() - code.defaults.len();
        for (at, (number, value)) in code.args.iter().zip(bound).enumerate() {
            let value = match (value, at.checked_sub(without)) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(&code.defaults[default], &scope)?,
                (None, None) => Value::Undefined(format!("parameter '{}' was not provided", closure.args[at]).into()),
            };
            scope.set(*number, value);
        }
        let unowned = self.is_unowned.replace(false);
        let made = self.run(&code.body, &scope, out);
        self.is_unowned.set(unowned);
        made.map(|_| ())
    }

    #[inline(never)]
    fn call_function(&self, function: Function, given: &CallArguments) -> Result<Value, Error> {
        match function {
            Function::Range => {
                let numbers = given.positional.iter().map(|value| integer("range", value));
                let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
                let (start, stop, by) = match (&numbers[..], given.named.is_empty()) {
                    ([stop], true) => (0, *stop, 1),
                    ([start, stop], true) => (*start, *stop, 1),
                    ([start, stop, by], true) if *by != 0 => (*start, *stop, *by),
                    _ => {
                        return Err(Error::new("range: expected one to three integers, of which the step is not zero"));
                    }
                };
                if range_length(start, stop, by) > LONGEST_RANGE {
                    return Err(Error::new(format!("range: more than {LONGEST_RANGE} numbers")));
                }
                Ok(Value::Range(start, stop, by))
            }
            Function::Dict => Ok(Value::Dict(Rc::new(dict_of(given)?))),
            Function::Namespace => {
                let fields = dict_of(given)?;
                fields.entries().filter_map(|(key, _)| key.as_text()).try_for_each(refuse_private)?;
                let namespace = Rc::new(RefCell::new(fields));
                self.held_namespaces.borrow_mut().push(namespace.clone());
                Ok(Value::Namespace(namespace))
            }
            Function::Cycler if given.positional.is_empty() => Err(Error::new("at least one item has to be provided")),
            Function::Cycler => Ok(Value::Cycler(Rc::new((given.positional.clone(), Cell::new(0))))),
            Function::Joiner => {
                let [separator] = given.bind("joiner", ["sep"])?;
                Ok(Value::Joiner(Rc::new((separator.unwrap_or_else(|| ", ".into()), Cell::new(false)))))
            }
            Function::Lipsum => Err(Error::new("'lipsum' is not supported in chat templates")),
            Function::RaiseException => {
                let [message] = given.bind("raise_exception", ["message"])?;
                Err(Error::raised(&*printed(&required("raise_exception", message)?)?))
            }
            Function::StrftimeNow => {
                let [format] = given.bind("strftime_now", ["format"])?;
                let format = required("strftime_now", format)?;
                let format = text("strftime_now", &format)?;
                charge(format.len() * 64)?;
                Ok(strftime(&chrono::Local::now(), format)?.into())
            }
        }
    }
}

/// `dict(...)`.
fn dict_of(given: &CallArguments) -> Result<Dict, Error> {
    let mut dict = match &given.positional[..] {
        [] => Dict::default(),
        [Value::Dict(dict)] => {
            let mut copy = Dict::default();
            dict.entries().for_each(|(key, value)| copy.insert(key.clone(), value.clone()));
            copy
        }
        [pairs] => {
            let mut dict = Dict::default();
            for pair in pairs.items()?.iter() {
                match &pair.items()?[..] {
                    [key, value] if key.is_hashable() => dict.insert(key.clone(), value.clone()),
                    _ => return Err(Error::new("dict: expected pairs of a key and a value")),
                }
            }
            dict
        }
        _ => return Err(Error::new("dict: expected at most one positional argument")),
    };
    charge(dict.entries().len() * 32)?;
    for (name, value) in &given.named {
        dict.insert(Value::Text(name.clone()), value.clone());
    }
    Ok(dict)
}

pub(super) fn refuse_private(name: &str) -> Result<(), Error> {
    if name.starts_with('_') {
        return Err(Error::new(format!("a namespace cannot store the underscore-prefixed attribute '{name}'")));
    }
    Ok(())
}
