//! Expressions, with the precedence of Jinja2.

use std::sync::Arc;

use num_traits::ToPrimitive;

use super::super::ast::{Args, Comparison, Expr, Filter, Math};
use super::super::error::Error;
use super::super::lexer::Token;
use super::{Parser, Result};

/// Most filters, attributes, calls and signs of one operand.
const CHAIN: u32 = 300;

impl Parser {
    /// Items with commas between them, and whether there is a comma, which makes a tuple.
    pub(super) fn separated<T>(
        &mut self,
        ends: &[&str],
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<(Vec<T>, bool)> {
        let (mut items, mut is_tuple) = (Vec::new(), false);
        while !self.is_tuple_end(ends) {
            items.push(item(self)?);
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        Ok((items, is_tuple))
    }

    fn is_tuple_end(&self, ends: &[&str]) -> bool {
        matches!(self.token(), Token::PrintEnd | Token::BlockEnd | Token::Operator(")"))
            || ends.iter().any(|end| self.is_name(end))
    }

    /// An expression, or several with commas between them, which are a tuple.
    pub(super) fn tuple(&mut self, with_condition: bool, ends: &[&str]) -> Result<Expr> {
        self.tuple_within(with_condition, ends, false)
    }

    fn tuple_within(&mut self, with_condition: bool, ends: &[&str], in_parentheses: bool) -> Result<Expr> {
        let (mut items, is_tuple) = self.separated(ends, |parser| parser.expression(with_condition))?;
        if !is_tuple {
            match items.pop() {
                Some(item) => return Ok(item),
                None if !in_parentheses => {
                    return self.fail(format!("expected an expression, found {}", self.token()));
                }
                None => {}
            }
        }
        Ok(Expr::Tuple(items))
    }

    pub(super) fn expression(&mut self, with_condition: bool) -> Result<Expr> {
        self.nested(|parser| if with_condition { parser.conditional() } else { parser.or() })
    }

    fn conditional(&mut self) -> Result<Expr> {
        let mut value = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(self.nested(Self::conditional)?) } else { None };
            value = Expr::If(Box::new((value, test, otherwise)));
        }
        Ok(value)
    }

    fn or(&mut self) -> Result<Expr> {
        let first = self.and()?;
        if !self.is_name("or") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip_name("or") {
            operands.push(self.and()?);
        }
        Ok(Expr::Or(operands))
    }

    fn and(&mut self) -> Result<Expr> {
        let first = self.not()?;
        if !self.is_name("and") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip_name("and") {
            operands.push(self.not()?);
        }
        Ok(Expr::And(operands))
    }

    fn not(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            return Ok(Expr::Not(Box::new(self.nested(Self::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut operands = Vec::new();
        loop {
            let comparison = match self.token() {
                Token::Operator("==") => Comparison::Eq,
                Token::Operator("!=") => Comparison::Ne,
                Token::Operator("<") => Comparison::Lt,
                Token::Operator("<=") => Comparison::Le,
                Token::Operator(">") => Comparison::Gt,
                Token::Operator(">=") => Comparison::Ge,
                Token::Name(name) if **name == *"in" => Comparison::In,
                Token::Name(name) if **name == *"not" && self.is_next_name("in") => {
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            operands.push((comparison, self.sum()?));
        }
        Ok(if operands.is_empty() { first } else { Expr::Compare(Box::new(first), operands) })
    }

    fn math(&mut self, operand: impl Fn(&mut Self) -> Result<Expr>, operators: &[(&str, Math)]) -> Result<Expr> {
        let first = operand(self)?;
        let mut operands = Vec::new();
        while let Some((_, math)) = operators.iter().find(|(operator, _)| self.is_operator(operator)) {
            self.next();
            operands.push((*math, operand(self)?));
        }
        Ok(if operands.is_empty() { first } else { Expr::Math(Box::new(first), operands) })
    }

    fn sum(&mut self) -> Result<Expr> {
        self.math(Self::concat, &[("+", Math::Add), ("-", Math::Sub)])
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip_operator("~") {
            operands.push(self.product()?);
        }
        Ok(Expr::Concat(operands))
    }

    fn product(&mut self) -> Result<Expr> {
        let power = |parser: &mut Self| parser.math(|parser| parser.unary(true), &[("**", Math::Pow)]);
        self.math(power, &[("*", Math::Mul), ("/", Math::Div), ("//", Math::FloorDiv), ("%", Math::Rem)])
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let mut operand = if self.is_operator("-") || self.is_operator("+") {
            let is_minus = self.next() == Token::Operator("-");
            let inner = Box::new(self.nested(|parser| parser.unary(false))?);
            if is_minus { Expr::Neg(inner) } else { Expr::Pos(inner) }
        } else {
            self.primary()?
        };
        let mut length = 0;
        operand = self.postfix(operand, &mut length)?;
        if with_filters {
            operand = self.filters_and_tests(operand, &mut length)?;
        }
        Ok(operand)
    }

    fn count(&self, length: &mut u32) -> Result<()> {
        *length += 1;
        if *length > CHAIN {
            self.fail(format!("an operand with more than {CHAIN} filters, calls and attributes"))
        } else {
            Ok(())
        }
    }

    fn primary(&mut self) -> Result<Expr> {
        let line = self.line();
        match self.next() {
            Token::Name(name) => Ok(match &*name {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => Expr::Name(self.number(name)),
            }),
            Token::Text(mut text) => {
                while let Token::Text(more) = self.token() {
                    text.push_str(more);
                    self.next();
                }
                Ok(Expr::Text(text.into()))
            }
            Token::Integer(number) => Ok(number.to_i64().map_or_else(|| Expr::Big(number), Expr::Int)),
            Token::Float(number) => Ok(Expr::Float(number)),
            Token::Operator("(") => {
                let inner = self.tuple_within(true, &[], true)?;
                self.expect_operator(")")?;
                Ok(inner)
            }
            Token::Operator("[") => {
                let mut items = Vec::new();
                while !self.is_operator("]") {
                    if !items.is_empty() {
                        self.expect_operator(",")?;
                    }
                    if self.is_operator("]") {
                        break;
                    }
                    items.push(self.expression(true)?);
                }
                self.next();
                Ok(Expr::List(items))
            }
            Token::Operator("{") => {
                let mut pairs = Vec::new();
                while !self.is_operator("}") {
                    if !pairs.is_empty() {
                        self.expect_operator(",")?;
                    }
                    if self.is_operator("}") {
                        break;
                    }
                    let key = self.expression(true)?;
                    self.expect_operator(":")?;
                    pairs.push((key, self.expression(true)?));
                }
                self.next();
                Ok(Expr::Dict(pairs))
            }
            other => Err(Error::syntax(format!("unexpected {other}")).at_line(line)),
        }
    }

    fn postfix(&mut self, mut operand: Expr, length: &mut u32) -> Result<Expr> {
        loop {
            let line = self.line();
            operand = match self.token() {
                Token::Operator(".") => {
                    self.next();
                    match self.next() {
                        Token::Name(name) => Expr::Attribute(Box::new(operand), name),
                        Token::Integer(number) => {
                            let item = number.to_i64().map_or(Expr::None, Expr::Int);
                            Expr::Item(Box::new((operand, item)))
                        }
                        other => return self.fail(format!("expected a name or a number, found {other}")),
                    }
                }
                Token::Operator("[") => {
                    self.next();
                    let made = self.subscript(operand)?;
                    self.expect_operator("]")?;
                    made
                }
                Token::Operator("(") => Expr::Call(Box::new((operand, self.args()?)), line),
                _ => return Ok(operand),
            };
            self.count(length)?;
        }
    }

    /// An item or a slice, without the brackets.
    fn subscript(&mut self, operand: Expr) -> Result<Expr> {
        let is_bound = |parser: &Self| !parser.is_operator(":") && !parser.is_operator("]") && !parser.is_operator(",");
        let first = if is_bound(self) { Some(self.expression(true)?) } else { None };
        if !self.skip_operator(":") {
            let Some(first) = first else { return self.fail("expected a subscript") };
            if !self.is_operator(",") {
                return Ok(Expr::Item(Box::new((operand, first))));
            }
            let mut items = vec![first];
            while self.skip_operator(",") {
                items.push(self.expression(true)?);
            }
            return Ok(Expr::Item(Box::new((operand, Expr::Tuple(items)))));
        }
        let stop = if is_bound(self) { Some(self.expression(true)?) } else { None };
        let has_step = self.skip_operator(":") && is_bound(self);
        let step = if has_step { Some(self.expression(true)?) } else { None };
        Ok(Expr::Slice(Box::new((operand, first, stop, step))))
    }

    fn filters_and_tests(&mut self, mut operand: Expr, length: &mut u32) -> Result<Expr> {
        loop {
            let line = self.line();
            operand = match self.token() {
                Token::Operator("|") => {
                    self.next();
                    let filter = self.filter()?;
                    Expr::Filter(Box::new(operand), Box::new(filter))
                }
                Token::Name(name) if **name == *"is" => self.test(operand)?,
                Token::Operator("(") => Expr::Call(Box::new((operand, self.args()?)), line),
                _ => return Ok(operand),
            };
            self.count(length)?;
        }
    }

    /// The filters of a block; the first of a filter block has no bar before it.
    pub(super) fn filters(&mut self, first_is_bare: bool) -> Result<Vec<Filter>> {
        let (mut filters, mut is_bare) = (Vec::new(), first_is_bare);
        while is_bare || self.skip_operator("|") {
            is_bare = false;
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    fn dotted(&mut self) -> Result<Arc<str>> {
        let mut name = self.expect_word()?;
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.expect_word()?).into();
        }
        Ok(name)
    }

    fn filter(&mut self) -> Result<Filter> {
        let line = self.line();
        let name = self.dotted()?;
        let args = if self.is_operator("(") { self.args()? } else { Args::default() };
        Ok(Filter { name, args, line })
    }

    fn test(&mut self, operand: Expr) -> Result<Expr> {
        let line = self.line();
        self.next();
        let is_negated = self.skip_name("not");
        let name = self.dotted()?;
        let mut args = Args::default();
        let is_word = |word: &str| self.is_name(word);
        match self.token() {
            Token::Operator("(") => args = self.args()?,
            Token::Name(_) if ["else", "or", "and"].into_iter().any(is_word) => {}
            Token::Name(_) if is_word("is") => return self.fail("tests with `is` cannot be chained"),
            Token::Name(_) | Token::Text(_) | Token::Integer(_) | Token::Float(_) | Token::Operator("[" | "{") => {
                let argument = self.nested(Self::primary)?;
                let mut length = 0;
                args.positional.push(self.postfix(argument, &mut length)?);
            }
            _ => {}
        }
        let test = Expr::Test(Box::new(operand), Box::new(Filter { name, args, line }));
        Ok(if is_negated { Expr::Not(Box::new(test)) } else { test })
    }

    fn args(&mut self) -> Result<Args> {
        self.expect_operator("(")?;
        let mut args = Args::default();
        let mut is_first = true;
        while !self.is_operator(")") {
            if !is_first {
                self.expect_operator(",")?;
                if self.is_operator(")") {
                    break;
                }
            }
            is_first = false;
            let invalid = "invalid syntax for the arguments of a call";
            let is_named = matches!(self.token(), Token::Name(_))
                && matches!(self.tokens.get(self.at + 1), Some((Token::Operator("="), _)));
            if self.skip_operator("*") {
                if args.more.is_some() || args.more_named.is_some() {
                    return self.fail(invalid);
                }
                args.more = Some(self.expression(true)?);
            } else if self.skip_operator("**") {
                if args.more_named.is_some() {
                    return self.fail(invalid);
                }
                args.more_named = Some(self.expression(true)?);
            } else if is_named {
                if args.more_named.is_some() {
                    return self.fail(invalid);
                }
                let name = self.expect_word()?;
                self.next();
                args.named.push((name, self.expression(true)?));
            } else {
                if args.more.is_some() || args.more_named.is_some() || !args.named.is_empty() {
                    return self.fail(invalid);
                }
                args.positional.push(self.expression(true)?);
            }
        }
        self.next();
        Ok(args)
    }
}
