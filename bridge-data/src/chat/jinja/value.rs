//! Values with the meaning that Python gives them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use indexmap::map::Entry;
use indexmap::{Equivalent, IndexMap};
use num_bigint::BigInt;
use num_traits::ToPrimitive;

use super::ast::Macro;
use super::error::Error;
use super::limits::{self, DEPTH, charge};
use super::scope::Scope;

/// Deepest nesting of values in variables.
const NESTED: usize = 200;

/// A value of a template.
#[derive(Clone)]
pub(in crate::chat) enum Value {
    /// With the message of the error that its use is.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits.
    Big(Rc<BigInt>),
    Float(f64),
    Text(Arc<str>),
    /// Text that needs no escaping.
    Markup(Arc<str>),
    List(Rc<Vec<Value>>),
    Tuple(Rc<Vec<Value>>),
    Dict(Rc<Dict>),
    View(View, Rc<Dict>),
    /// Start, stop and step.
    Range(i64, i64, i64),
    /// An iterator, which is used up.
    Iter(Rc<Iter>),
    Namespace(Rc<RefCell<Dict>>),
    Loop(Rc<Loop>),
    Function(Function),
    /// A method of a value.
    Method(Rc<(Value, Arc<str>)>),
    Macro(Rc<Closure>),
    Cycler(Rc<(Vec<Value>, Cell<usize>)>),
    Joiner(Rc<(Value, Cell<bool>)>),
}

/// Part of a dictionary that is iterated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) enum View {
    Keys,
    Values,
    Items,
}

/// Functions that every template has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::chat) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    Lipsum,
    RaiseException,
    StrftimeNow,
}

/// Items that are made already, and the error in place of the next one, if one failed.
pub(in crate::chat) struct Iter {
    pub(super) items: RefCell<VecDeque<Value>>,
    pub(super) failure: RefCell<Option<Error>>,
}

impl Iter {
    /// The next item, which is removed.
    ///
    /// # Errors
    /// The failure in place of the item.
    pub(super) fn next(&self) -> Result<Option<Value>, Error> {
        let item = self.items.borrow_mut().pop_front();
        match self.failure.borrow().clone().filter(|_| item.is_none()) {
            Some(error) => Err(error),
            None => Ok(item),
        }
    }
}

/// A loop while it runs.
pub(in crate::chat) struct Loop {
    pub(super) items: Rc<Vec<Value>>,
    pub(super) at: Cell<usize>,
    pub(super) depth: usize,
    pub(super) last: RefCell<Option<Vec<Value>>>,
    /// The loop itself and the scope around it, if it is recursive.
    pub(super) repeat: Option<(Arc<super::ast::For>, Rc<Scope>)>,
}

/// A macro with the variables around its definition.
pub(in crate::chat) struct Closure {
    pub(super) code: Arc<Macro>,
    pub(super) name: Arc<str>,
    pub(super) args: Vec<Arc<str>>,
    pub(super) scope: Rc<Scope>,
}

/// A dictionary in the order of its keys.
#[derive(Clone, Default)]
pub(in crate::chat) struct Dict {
    entries: IndexMap<Key, (Value, Value), ahash::RandomState>,
    /// For each entry, true if it was read, in dictionaries that record it.
    read: Option<RefCell<Vec<bool>>>,
}

/// A value as a key: numbers of the same value are one key.
#[derive(Clone)]
pub(in crate::chat) struct Key(Value);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Value::Text(text) | Value::Markup(text) => Named(text).hash(state),
            Value::Tuple(items) => items.iter().for_each(|item| Self(item.clone()).hash(state)),
            other => other.as_float().unwrap_or(0.0).to_bits().hash(state),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        equal(&self.0, &other.0).unwrap_or(false)
    }
}

impl Eq for Key {}

/// A text that is looked for among keys.
#[derive(Hash)]
struct Named<'t>(&'t str);

impl Equivalent<Key> for Named<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        key.0.as_text() == Some(self.0)
    }
}

impl Dict {
    /// Keys with their values, which count as read.
    pub(super) fn entries(&self) -> indexmap::map::Values<'_, Key, (Value, Value)> {
        if let Some(read) = &self.read {
            read.borrow_mut().fill(true);
        }
        self.entries.values()
    }

    /// The value of a key, without recording that it is read.
    pub(in crate::chat) fn peek(&self, key: &str) -> Option<&Value> {
        self.entries.get(&Named(key)).map(|(_, value)| value)
    }

    /// True if the value of a key was read since the dictionary was made.
    pub(in crate::chat) fn was_read(&self, key: &str) -> bool {
        let at = self.entries.get_index_of(&Named(key));
        at.zip(self.read.as_ref()).is_some_and(|(at, read)| read.borrow().get(at) == Some(&true))
    }

    fn at(&self, at: usize) -> Option<&Value> {
        if let Some(read) = &self.read
            && let Some(entry) = read.borrow_mut().get_mut(at)
        {
            *entry = true;
        }
        self.entries.get_index(at).map(|(_, (_, value))| value)
    }

    pub(super) fn get_text(&self, key: &str) -> Option<&Value> {
        self.at(self.entries.get_index_of(&Named(key))?)
    }

    pub(super) fn get(&self, key: &Value) -> Option<&Value> {
        match key.as_text() {
            Some(text) => self.get_text(text),
            None => self.at(self.entries.get_index_of(&Key(key.clone()))?),
        }
    }

    pub(in crate::chat) fn insert(&mut self, key: Value, value: Value) {
        match self.entries.entry(Key(key.clone())) {
            Entry::Occupied(mut entry) => entry.get_mut().1 = value,
            Entry::Vacant(entry) => {
                entry.insert((key, value));
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Int(value as i64)
    }
}

impl From<BigInt> for Value {
    fn from(number: BigInt) -> Self {
        number.to_i64().map_or_else(|| Self::Big(Rc::new(number)), Self::Int)
    }
}

impl Value {
    pub(in crate::chat) fn list(items: Vec<Self>) -> Self {
        Self::List(Rc::new(items))
    }

    pub(super) fn tuple(items: Vec<Self>) -> Self {
        Self::Tuple(Rc::new(items))
    }

    pub(super) fn dict(entries: impl IntoIterator<Item = (Self, Self)>) -> Self {
        let mut dict = Dict::default();
        entries.into_iter().for_each(|(key, value)| dict.insert(key, value));
        Self::Dict(Rc::new(dict))
    }

    /// A dictionary that records which entries are read.
    pub(in crate::chat) fn recording_dict(entries: impl IntoIterator<Item = (Self, Self)>) -> Self {
        let mut dict = Dict::default();
        entries.into_iter().for_each(|(key, value)| dict.insert(key, value));
        dict.read = Some(RefCell::new(vec![false; dict.entries.len()]));
        Self::Dict(Rc::new(dict))
    }

    pub(super) fn undefined(name: &str) -> Self {
        Self::Undefined(format!("'{name}' is undefined").into())
    }

    /// An iterator over items that are there, up to the first failure.
    pub(super) fn iterator(made: impl IntoIterator<Item = Result<Self, Error>>) -> Self {
        let (mut items, mut failure) = (VecDeque::new(), None);
        for item in made {
            match item {
                Ok(item) => items.push_back(item),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        Self::Iter(Rc::new(Iter { items: RefCell::new(items), failure: RefCell::new(failure) }))
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Markup(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    /// The integer, if the value is one, or a Boolean.
    pub(super) fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    pub(super) fn as_big(&self) -> Option<BigInt> {
        match self {
            Self::Big(number) => Some((**number).clone()),
            other => other.as_int().map(BigInt::from),
        }
    }

    /// The number as a float; integers too.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Big(number) => number.to_f64(),
            other => other.as_int().map(|number| number as f64),
        }
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Bool(_) | Self::Int(_) | Self::Big(_) | Self::Float(_))
    }

    /// The name of the type in Python.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Big(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::Markup(_) => "Markup",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Range(..) => "range",
            Self::Iter(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Loop(_) => "LoopContext",
            Self::Function(_) => "function",
            Self::Method(_) => "builtin_function_or_method",
            Self::Macro(_) => "Macro",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) | Self::Markup(text) => !text.is_empty(),
            Self::List(items) | Self::Tuple(items) => !items.is_empty(),
            Self::Dict(dict) | Self::View(_, dict) => !dict.entries.is_empty(),
            Self::Range(start, stop, step) => range_length(*start, *stop, *step) > 0,
            _ => true,
        }
    }

    /// `len(value)`.
    ///
    /// # Errors
    /// A value without a length.
    pub(super) fn length(&self) -> Result<usize, Error> {
        Ok(match self {
            Self::Undefined(_) => 0,
            Self::Text(text) | Self::Markup(text) => {
                charge(text.len() / 16)?;
                text.chars().count()
            }
            Self::List(items) | Self::Tuple(items) => items.len(),
            Self::Dict(dict) | Self::View(_, dict) => dict.entries.len(),
            Self::Range(start, stop, step) => range_length(*start, *stop, *step),
            Self::Loop(looped) => looped.items.len(),
            other => return Err(Error::new(format!("object of type '{}' has no len()", other.type_name()))),
        })
    }

    pub(super) fn is_iterable(&self) -> bool {
        matches!(
            self,
            Self::Undefined(_)
                | Self::Text(_)
                | Self::Markup(_)
                | Self::List(_)
                | Self::Tuple(_)
                | Self::Dict(_)
                | Self::View(..)
                | Self::Range(..)
                | Self::Iter(_)
                | Self::Loop(_)
        )
    }

    /// All items of the value; an iterator is used up. Fails on a value that is not iterable; an
    /// iterator that fails.
    pub(super) fn items(&self) -> Result<Rc<Vec<Self>>, Error> {
        if let Self::List(items) | Self::Tuple(items) = self {
            charge(items.len())?;
            return Ok(items.clone());
        }
        let made: Vec<Self> = match self {
            Self::Undefined(_) => Vec::new(),
            Self::Text(text) | Self::Markup(text) => {
                charge(text.len() * 32)?;
                let mut bytes = [0; 4];
                text.chars().map(|character| Self::from(&*character.encode_utf8(&mut bytes))).collect()
            }
            Self::Dict(dict) | Self::View(View::Keys, dict) => dict.entries().map(|(key, _)| key.clone()).collect(),
            Self::View(View::Values, dict) => dict.entries().map(|(_, value)| value.clone()).collect(),
            Self::View(View::Items, dict) => {
                dict.entries().map(|(key, value)| Self::tuple(vec![key.clone(), value.clone()])).collect()
            }
            Self::Range(start, stop, step) => {
                let length = range_length(*start, *stop, *step);
                charge(length * 16)?;
                (0..length).map(|at| Self::Int(start + at as i64 * step)).collect()
            }
            Self::Iter(iter) => {
                let items = iter.items.take();
                if let Some(error) = iter.failure.take() {
                    return Err(error);
                }
                items.into()
            }
            Self::Loop(looped) => looped.items.get(looped.at.get() + 1..).unwrap_or_default().to_vec(),
            other => return Err(Error::new(format!("'{}' object is not iterable", other.type_name()))),
        };
        charge(made.len())?;
        Ok(Rc::new(made))
    }

    /// Refuses values that are nested too deep to be dropped. Assignments call it, because a value
    /// that grows in a loop passes through a variable. Fails on a value that is nested deeper than
    /// [`NESTED`], or too large to be traversed.
    pub(super) fn check_depth(&self, depth: usize) -> Result<(), Error> {
        if depth > NESTED {
            return Err(Error::too_much("it nests values too deep"));
        }
        let all = |items: &[Self]| {
            charge(items.len())?;
            items.iter().try_for_each(|item| item.check_depth(depth + 1))
        };
        match self {
            Self::List(items) | Self::Tuple(items) => all(items),
            Self::Dict(dict) | Self::View(_, dict) => {
                charge(dict.entries.len())?;
                dict.entries.values().try_for_each(|(_, value)| value.check_depth(depth + 1))
            }
            Self::Iter(iter) => iter.items.borrow().iter().try_for_each(|item| item.check_depth(depth + 1)),
            Self::Method(method) => method.0.check_depth(depth + 1),
            Self::Cycler(cycler) => all(&cycler.0),
            Self::Joiner(joiner) => joiner.0.check_depth(depth + 1),
            _ => Ok(()),
        }
    }

    /// True if the value may be a key.
    pub(super) fn is_hashable(&self) -> bool {
        match self {
            Self::List(_) | Self::Dict(_) | Self::Namespace(_) | Self::View(View::Keys | View::Items, _) => false,
            Self::Tuple(items) => items.iter().all(Self::is_hashable),
            _ => true,
        }
    }
}

pub(super) fn range_length(start: i64, stop: i64, step: i64) -> usize {
    let (start, stop, step) = (i128::from(start), i128::from(stop), i128::from(step));
    let length = if step > 0 { (stop - start + step - 1) / step } else { (start - stop - step - 1) / -step };
    usize::try_from(length).unwrap_or(0)
}

/// `a == b`.
///
/// # Errors
/// Values that are nested too deep; a limit that is exceeded.
pub(super) fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    equal_within(a, b, 0)
}

fn equal_within(a: &Value, b: &Value, depth: usize) -> Result<bool, Error> {
    if depth > DEPTH {
        return Err(Error::too_much("it compares values that are nested too deep"));
    }
    limits::step()?;
    if let (Some(a), Some(b)) = (a.as_text(), b.as_text()) {
        charge(a.len().min(b.len()) / 16)?;
        return Ok(a == b);
    }
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(&**b) {
                if !equal_within(a, b, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for (key, (_, value)) in &a.entries {
                match b.entries.get(key) {
                    Some((_, other)) if equal_within(value, other, depth + 1)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(..), Value::Range(..)) => {
            let (a, b) = (a.items()?, b.items()?);
            a.len() == b.len() && a.iter().zip(&**b).all(|(a, b)| a.as_int() == b.as_int())
        }
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Iter(a), Value::Iter(b)) => Rc::ptr_eq(a, b),
        (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        _ if a.is_number() && b.is_number() => match (a.as_big(), b.as_big()) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_float() == b.as_float(),
        },
        _ => false,
    })
}

/// The order of two values. Fails on values that Python does not order.
pub(super) fn compare(a: &Value, b: &Value, sign: &str) -> Result<Option<std::cmp::Ordering>, Error> {
    limits::step()?;
    if let (Value::Undefined(message), _) | (_, Value::Undefined(message)) = (a, b) {
        return Err(Error::new(&**message));
    }
    if let (Some(a), Some(b)) = (a.as_text(), b.as_text()) {
        charge(a.len().min(b.len()) / 16)?;
        return Ok(Some(a.cmp(b)));
    }
    if a.is_number() && b.is_number() {
        return Ok(match (a.as_big(), b.as_big()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            _ => a.as_float().zip(b.as_float()).and_then(|(a, b)| a.partial_cmp(&b)),
        });
    }
    if let (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) = (a, b) {
        for (a, b) in a.iter().zip(&**b) {
            if !equal(a, b)? {
                return compare(a, b, sign);
            }
        }
        return Ok(Some(a.len().cmp(&b.len())));
    }
    let (a, b) = (a.type_name(), b.type_name());
    Err(Error::new(format!("'{sign}' not supported between instances of '{a}' and '{b}'")))
}

impl From<&serde_json::Number> for Value {
    fn from(number: &serde_json::Number) -> Self {
        let of_float = || Self::Float(number.as_f64().unwrap_or(f64::NAN));
        let of_unsigned = || number.as_u64().map(|number| Self::from(BigInt::from(number)));
        number.as_i64().map(Self::Int).or_else(of_unsigned).unwrap_or_else(of_float)
    }
}
