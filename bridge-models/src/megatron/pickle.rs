//! Python's pickles as data. A pickle is a program for a stack machine that may call any function
//! of Python; here a call is only recorded as a function's name and arguments, and no code runs.
//! Opcodes are those of protocols 2 to 5 that PyTorch writes (CPython, Lib/pickletools.py).

use std::collections::HashMap;

/// A value's place in its [`Pickle`].
pub type Id = usize;

/// A value. Parts are given by their places, so that deep or shared ones cost nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer that fits.
    Int(i64),
    /// A float, a byte string or an integer that does not fit. The metadata that Bridge reads has
    /// no such values.
    Other,
    /// A text.
    Text(String),
    /// The arguments, a tuple.
    Tuple(Vec<Id>),
    /// A list or set.
    List(Vec<Id>),
    /// A dictionary, in its order.
    Dict(Vec<(Id, Id)>),
    /// A class or function by module and name.
    Global(String, String),
    /// Result of calling a class or function with arguments, and the state that is set afterwards.
    Made {
        /// The class or function.
        class: Id,
        /// A tuple.
        arguments: Id,
        /// The state, if it was set.
        state: Option<Id>,
    },
    /// Object outside the pickle, named by a tuple.
    Persistent(Id),
}

/// A pickle that was read.
#[derive(Debug)]
pub struct Pickle {
    values: Vec<Value>,
    /// The place of the whole.
    pub root: Id,
}

/// Why it cannot be read, and at which byte.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pickle cannot be read at byte {at}: {what}")]
pub struct PickleError {
    at: usize,
    what: String,
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl Pickle {
    /// Reads the pickle that `bytes` begin with. Fails if the bytes are not a pickle, or have an
    /// opcode that no such file needs.
    pub fn read(bytes: &[u8]) -> Result<Self, PickleError> {
        let mut machine =
            Machine { bytes, at: 0, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
        loop {
            if let Some(root) = machine.step()? {
                return Ok(Self { values: machine.values, root });
            }
        }
    }

    /// A value.
    pub fn get(&self, id: Id) -> &Value {
        &self.values[id]
    }

    /// Text of the object, if it is one.
    pub fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Value of the object as a size, if it is one.
    pub fn size(&self, id: Id) -> Option<usize> {
        match self.get(id) {
            Value::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Elements of the object, if it is a tuple or list.
    pub fn parts(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::Tuple(parts) | Value::List(parts) => Some(parts),
            _ => None,
        }
    }

    /// Module and name of the class or function that made it.
    pub fn class(&self, id: Id) -> Option<(&str, &str)> {
        let Value::Made { class, .. } = self.get(id) else { return None };
        self.global(*class)
    }

    /// Module and name, if it is a class or function.
    pub fn global(&self, id: Id) -> Option<(&str, &str)> {
        match self.get(id) {
            Value::Global(module, name) => Some((module, name)),
            _ => None,
        }
    }

    /// The arguments that it was made of.
    pub fn arguments(&self, id: Id) -> Option<&[Id]> {
        let Value::Made { arguments, .. } = self.get(id) else { return None };
        self.parts(*arguments)
    }

    /// The state that it was given.
    pub fn state(&self, id: Id) -> Option<Id> {
        let Value::Made { state, .. } = self.get(id) else { return None };
        *state
    }

    /// The attribute `name` of an object whose state is a dictionary.
    pub fn attribute(&self, id: Id, name: &str) -> Option<Id> {
        let Value::Dict(entries) = self.get(self.state(id)?) else { return None };
        entries.iter().rev().find(|(key, _)| self.text(*key) == Some(name)).map(|(_, value)| *value)
    }

    /// The numbers of a `torch.Size`, or of a tuple.
    pub fn sizes(&self, id: Id) -> Option<Vec<usize>> {
        let parts = match self.class(id) {
            Some(("torch", "Size")) => self.parts(*self.arguments(id)?.first()?)?,
            Some(_) => return None,
            None => self.parts(id)?,
        };
        parts.iter().map(|part| self.size(*part)).collect()
    }
}

impl Machine<'_> {
    fn error<T>(&self, what: impl Into<String>) -> Result<T, PickleError> {
        Err(PickleError { at: self.at, what: what.into() })
    }

    fn take(&mut self, count: u64) -> Result<&[u8], PickleError> {
        let end = usize::try_from(count).ok().and_then(|count| self.at.checked_add(count));
        match end.filter(|end| *end <= self.bytes.len()) {
            Some(end) => {
                let taken = &self.bytes[self.at..end];
                self.at = end;
                Ok(taken)
            }
            None => self.error("it ends too early"),
        }
    }

    /// An unsigned number of `count` bytes, little-endian.
    fn number(&mut self, count: u64) -> Result<u64, PickleError> {
        Ok(self.take(count)?.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    }

    fn line(&mut self) -> Result<String, PickleError> {
        let length = self.bytes[self.at..].iter().position(|byte| *byte == b'\n');
        let Some(length) = length else { return self.error("a line has no end") };
        let text = String::from_utf8_lossy(self.take(length as u64)?).into_owned();
        self.at += 1;
        Ok(text)
    }

    fn text(&mut self, length: u64) -> Result<Value, PickleError> {
        let text = std::str::from_utf8(self.take(length)?).map(str::to_owned);
        text.map_or_else(|_| self.error("a text is not UTF-8"), |text| Ok(Value::Text(text)))
    }

    fn push(&mut self, value: Value) {
        self.values.push(value);
        self.stack.push(self.values.len() - 1);
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop().filter(|_| self.stack.len() >= floor) {
            Some(id) => Ok(id),
            None => self.error("a value is missing"),
        }
    }

    fn top(&self) -> Result<Id, PickleError> {
        self.stack.last().map_or_else(|| self.error("a value is missing"), |id| Ok(*id))
    }

    /// All values since the last mark.
    fn since_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        match self.marks.pop().filter(|mark| *mark <= self.stack.len()) {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => self.error("a mark is missing"),
        }
    }

    fn tuple(&mut self, count: usize) -> Result<(), PickleError> {
        let mut parts = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        parts.reverse();
        self.push(Value::Tuple(parts));
        Ok(())
    }

    fn append(&mut self, more: Vec<Id>) -> Result<(), PickleError> {
        let list = self.top()?;
        match &mut self.values[list] {
            Value::List(parts) => parts.extend(more),
            // The result of a class may be a list; the metadata that Bridge reads has no such
            // lists.
            Value::Made { .. } => {}
            _ => return self.error("what is appended to is no list"),
        }
        Ok(())
    }

    fn set(&mut self, more: &[Id]) -> Result<(), PickleError> {
        let dict = self.top()?;
        if !more.len().is_multiple_of(2) {
            return self.error("a key has no value");
        }
        match &mut self.values[dict] {
            Value::Dict(entries) => entries.extend(more.chunks_exact(2).map(|pair| (pair[0], pair[1]))),
            Value::Made { .. } => {}
            _ => return self.error("what is set in is no dictionary"),
        }
        Ok(())
    }

    fn memoize(&mut self, key: u64) -> Result<(), PickleError> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Result<(), PickleError> {
        match self.memo.get(&key) {
            Some(id) => self.stack.push(*id),
            None => return self.error(format!("there is no value {key}")),
        }
        Ok(())
    }

    fn make(&mut self) -> Result<(), PickleError> {
        let (arguments, class) = (self.pop()?, self.pop()?);
        self.push(Value::Made { class, arguments, state: None });
        Ok(())
    }

    /// Does one instruction; the place of the whole at the end.
    fn step(&mut self) -> Result<Option<Id>, PickleError> {
        let opcode = self.take(1)?[0];
        match opcode {
            b'.' => return self.pop().map(Some),
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'2' => self.stack.push(self.top()?),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'}' => self.push(Value::Dict(Vec::new())),
            b']' | 0x8f => self.push(Value::List(Vec::new())),
            b')' => self.push(Value::Tuple(Vec::new())),
            b't' => {
                let parts = self.since_mark()?;
                self.push(Value::Tuple(parts));
            }
            0x85..=0x87 => self.tuple(usize::from(opcode - 0x84))?,
            b'l' | 0x91 => {
                let parts = self.since_mark()?;
                self.push(Value::List(parts));
            }
            b'a' => {
                let value = self.pop()?;
                self.append(vec![value])?;
            }
            b'e' | 0x90 => {
                let values = self.since_mark()?;
                self.append(values)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let values = self.since_mark()?;
                self.set(&values)?;
            }
            b'R' | 0x81 => self.make()?,
            b'b' => {
                let state = self.pop()?;
                let object = self.top()?;
                match &mut self.values[object] {
                    Value::Made { state: of_object, .. } => *of_object = Some(state),
                    _ => return self.error("what is given a state is no object"),
                }
            }
            b'Q' => {
                let name = self.pop()?;
                self.push(Value::Persistent(name));
            }
            _ => self.leaf(opcode)?,
        }
        Ok(None)
    }

    /// Instructions with numbers, texts and names, and those of the memo.
    fn leaf(&mut self, opcode: u8) -> Result<(), PickleError> {
        let value = match opcode {
            b'K' => Value::Int(self.number(1)? as i64),
            b'M' => Value::Int(self.number(2)? as i64),
            b'J' => Value::Int(i64::from(self.number(4)? as u32 as i32)),
            0x8a => {
                let length = self.number(1)?;
                let bytes = self.take(length)?;
                let sign = if bytes.last().is_some_and(|byte| *byte >= 0x80) { -1_i64 } else { 0 };
                match bytes.len() {
                    0..=8 => Value::Int(bytes.iter().rev().fold(sign, |number, byte| (number << 8) | i64::from(*byte))),
                    _ => Value::Other,
                }
            }
            b'G' => {
                self.take(8)?;
                Value::Other
            }
            b'X' => {
                let length = self.number(4)?;
                self.text(length)?
            }
            0x8c => {
                let length = self.number(1)?;
                self.text(length)?
            }
            0x8d => {
                let length = self.number(8)?;
                self.text(length)?
            }
            b'C' | b'B' | 0x8e | 0x96 => {
                let length = self.number(match opcode {
                    b'C' => 1,
                    b'B' => 4,
                    _ => 8,
                })?;
                self.take(length)?;
                Value::Other
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                Value::Global(module, name)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (&self.values[module], &self.values[name]) {
                    (Value::Text(module), Value::Text(name)) => Value::Global(module.clone(), name.clone()),
                    _ => return self.error("a name is no text"),
                }
            }
            0x94 => return self.memoize(self.memo.len() as u64),
            b'q' | b'r' => {
                let key = self.number(if opcode == b'q' { 1 } else { 4 })?;
                return self.memoize(key);
            }
            b'h' | b'j' => {
                let key = self.number(if opcode == b'h' { 1 } else { 4 })?;
                return self.recall(key);
            }
            _ => {
                self.at -= 1;
                return self.error(format!("no such file needs the opcode {opcode:#04x}"));
            }
        };
        self.push(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `{"a": (1, -2, None, True, "ä", [3, 300, 70000]), "b": torch.Size((4, 5))}` by protocol 4.
    const MIXED: &[u8] = b"\x80\x04\x95\x51\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94(K\x01J\xfe\xff\xff\xffN\x88\x8c\x02\xc3\xa4\x94]\x94(K\x03M,\x01Jp\x11\x01\x00et\x94\x8c\x01b\x94\x8c\x05torch\x94\x8c\x04Size\x94\x93\x94K\x04K\x05\x86\x94\x85\x94R\x94u.";

    #[test]
    fn values_are_those_of_python() {
        let pickle = Pickle::read(MIXED).unwrap();
        let Value::Dict(entries) = pickle.get(pickle.root) else { panic!("{pickle:?}") };
        let [(a, values), (b, size)] = entries[..] else { panic!("{entries:?}") };
        assert_eq!((pickle.text(a), pickle.text(b)), (Some("a"), Some("b")));
        let parts = pickle.parts(values).unwrap();
        let expected = [Value::Int(1), Value::Int(-2), Value::None, Value::Bool(true), Value::Text("ä".into())];
        assert_eq!(parts[..5].iter().map(|id| pickle.get(*id).clone()).collect::<Vec<_>>(), expected);
        assert_eq!(pickle.sizes(parts[5]), Some(vec![3, 300, 70_000]));
        assert_eq!(pickle.class(size), Some(("torch", "Size")));
        assert_eq!(pickle.sizes(size), Some(vec![4, 5]));
    }

    #[test]
    fn damage_is_an_error_with_its_place() {
        for end in 0..MIXED.len() {
            assert!(Pickle::read(&MIXED[..end]).is_err(), "the first {end} bytes");
        }
        for (bytes, what) in [
            (&b"\x80\x04c"[..], "a line has no end"),
            (b"\x80\x04\x94.", "a value is missing"),
            (b"\x80\x04t.", "a mark is missing"),
            (b"\x80\x04h\x07.", "there is no value 7"),
            (b"\x80\x04K\x01K\x02a.", "no list"),
            (b"\x80\x04i", "opcode 0x69"),
        ] {
            let error = Pickle::read(bytes).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        // Every byte flipped: an error or other values, and never a panic.
        for at in 0..MIXED.len() {
            for bit in 0..8 {
                let mut bytes = MIXED.to_vec();
                bytes[at] ^= 1 << bit;
                let _ = Pickle::read(&bytes);
            }
        }
    }

    #[test]
    fn depth_and_sharing_cost_nothing() {
        let mut deep = b"\x80\x04)".to_vec();
        deep.extend(std::iter::repeat_n(0x85, 1_000_000));
        deep.push(b'.');
        assert!(Pickle::read(&deep).is_ok());
        let mut doubling = b"\x80\x04]".to_vec();
        doubling.extend(b"2\x86".repeat(100_000));
        doubling.push(b'.');
        assert!(Pickle::read(&doubling).is_ok());
    }
}
