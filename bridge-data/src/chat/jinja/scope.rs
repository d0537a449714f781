//! Variables of templates.

use std::cell::RefCell;
use std::rc::Rc;

use super::ast::Name;
use super::value::Value;

/// Variables of a frame, and those around it.
pub(super) struct Scope {
    variables: RefCell<Vec<(Name, Value)>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub(super) fn new(parent: Option<Rc<Self>>, variables: Vec<(Name, Value)>) -> Rc<Self> {
        Rc::new(Self { variables: RefCell::new(variables), parent })
    }

    pub(super) fn get(&self, name: Name) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(current) = scope {
            let variables = current.variables.borrow();
            if let Some((_, value)) = variables.iter().find(|(known, _)| *known == name) {
                return Some(value.clone());
            }
            scope = current.parent.as_deref();
        }
        None
    }

    pub(super) fn set(&self, name: Name, value: Value) {
        let mut variables = self.variables.borrow_mut();
        match variables.iter_mut().find(|(known, _)| *known == name) {
            Some(entry) => entry.1 = value,
            None => variables.push((name, value)),
        }
    }

    /// Forgets the variables, which may hold the scope itself.
    pub(super) fn clear(&self) {
        self.variables.borrow_mut().clear();
    }
}
