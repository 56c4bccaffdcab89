//! Reads the tensors of a state dictionary that torch wrote before version 1.6: three small pickles, the dictionary, the
//! keys of its storages, and the storages themselves.
//!
//! A pickle is a program. This knows only the instructions that put numbers, texts and tuples together, and of the names a
//! pickle can call only the four that every state dictionary has; what they would do is done here, and is only copying.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// What somebody may write in these few bytes at most.
const INSTRUCTIONS_MAX: usize = 1 << 18;
/// A state dictionary is not deep; what is deep would not end well.
const DEPTH_MAX: u32 = 8;

/// An array of floats with its shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Array {
    pub(super) shape: Vec<usize>,
    pub(super) numbers: Vec<f32>,
}

/// The float tensors by name.
pub(super) fn tensors(bytes: &[u8]) -> Result<BTreeMap<String, Array>, String> {
    let mut source = Source { bytes };
    match source.program()? {
        Value::Number(MAGIC) => {}
        _ => return Err("it is no file of weights that torch wrote".to_owned()),
    }
    // The version and what kind of machine wrote it: every machine that still runs is of this kind.
    source.program()?;
    source.program()?;
    let Value::Pairs(pairs) = source.program()? else {
        return Err("it has no dictionary of tensors".to_owned());
    };
    let Value::Tuple(keys, _) = source.program()? else {
        return Err("it has no list of storages".to_owned());
    };
    let views = pairs.iter().filter_map(|(name, value)| match (name, value) {
        (Value::Text(name), Value::View(view)) => Some((name, view)),
        _ => None,
    });
    let views: Vec<_> = views.collect();
    let widths: HashMap<_, _> =
        views.iter().map(|(_, view)| (&view.storage.key, view.storage.width)).collect();
    let mut storages = HashMap::new();
    for key in keys.iter() {
        let Value::Text(key) = key else { return Err("a storage has no name".to_owned()) };
        let width = *widths.get(key).ok_or("a storage belongs to no tensor")?;
        let count = usize::try_from(i64::from_le_bytes(source.array()?))
            .map_err(|_| "a storage of less than nothing")?;
        let bytes = count.checked_mul(width).ok_or("a storage larger than any file")?;
        storages.insert(Rc::clone(key), source.take(bytes)?);
    }
    let mut tensors = BTreeMap::new();
    for (name, view) in views.into_iter().filter(|(_, view)| view.storage.width == FLOAT) {
        let storage = storages.get(&view.storage.key).ok_or("a tensor has no storage")?;
        tensors.insert(name.to_string(), view.gather(storage)?);
    }
    Ok(tensors)
}

/// What a file of torch begins with, as its lowest eight bytes.
const MAGIC: i64 = 0xa86a_20f9_469c_fc6c_u64.cast_signed();
/// How many bytes a float takes; whole numbers take eight.
const FLOAT: usize = 4;

#[derive(Clone, Debug)]
enum Value {
    Nothing,
    Mark,
    Number(i64),
    Text(Rc<str>),
    /// With how deep it is.
    Tuple(Rc<[Value]>, u32),
    Pairs(Rc<Vec<(Value, Value)>>),
    Name(Name),
    Storage(Rc<Storage>),
    View(Rc<View>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Dictionary,
    Rebuild,
    /// Of numbers that take so many bytes each.
    Storage(usize),
}

#[derive(Debug)]
struct Storage {
    key: Rc<str>,
    width: usize,
}

/// A tensor as torch keeps it: part of a storage, with how far apart its elements are.
#[derive(Debug)]
struct View {
    storage: Rc<Storage>,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl View {
    fn gather(&self, storage: &[u8]) -> Result<Array, String> {
        let count = self.shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
        let count =
            count.filter(|count| *count <= storage.len()).ok_or("a tensor larger than its storage")?;
        let mut numbers = Vec::with_capacity(count);
        for index in 0..count {
            let (mut rest, mut at) = (index, self.offset);
            for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
                let step = (rest % size).checked_mul(*stride).and_then(|step| at.checked_add(step));
                at = step.ok_or("a tensor beyond its storage")?;
                rest /= size;
            }
            let bytes = at.checked_mul(FLOAT).and_then(|at| storage.get(at..)?.first_chunk());
            numbers.push(f32::from_le_bytes(*bytes.ok_or("a tensor beyond its storage")?));
        }
        Ok(Array { shape: self.shape.clone(), numbers })
    }
}

struct Source<'a> {
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or("it is cut short")?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or("it is cut short")?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.array().map(|[byte]| byte)
    }

    /// Up to the end of the line.
    fn line(&mut self) -> Result<&'a [u8], String> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n').ok_or("it is cut short")?;
        let line = self.take(end)?;
        self.take(1)?;
        Ok(line)
    }

    /// What one pickle leaves behind.
    fn program(&mut self) -> Result<Value, String> {
        let mut machine = Machine::default();
        for _ in 0..INSTRUCTIONS_MAX {
            if let Some(value) = machine.step(self)? {
                return Ok(value);
            }
        }
        Err("it has more instructions than any dictionary of tensors".to_owned())
    }
}

#[derive(Default)]
struct Machine {
    stack: Vec<Value>,
    memo: HashMap<u32, Value>,
}

impl Machine {
    /// One instruction, by the letters that Python's pickletools has for them; the value that is left when it stops.
    fn step(&mut self, source: &mut Source) -> Result<Option<Value>, String> {
        let value = match source.byte()? {
            b'.' => return self.pop().map(Some),
            0x80 => {
                source.byte()?;
                return Ok(None);
            }
            b'q' => return self.remember(source.byte()?.into()).map(|()| None),
            b'r' => return self.remember(u32::from_le_bytes(source.array()?)).map(|()| None),
            b'u' => return self.set_all().map(|()| None),
            b's' => return self.set_one().map(|()| None),
            // What else torch knows of a dictionary: versions of modules, of which nothing here depends.
            b'b' => return self.pop().map(|_| None),
            b'e' => return self.append_all().map(|()| None),
            b'h' => self.recall(source.byte()?.into())?,
            b'j' => self.recall(u32::from_le_bytes(source.array()?))?,
            b'(' => Value::Mark,
            b'N' => Value::Nothing,
            0x88 | 0x89 => Value::Nothing,
            b')' | b']' => Value::Tuple([].into(), 0),
            b'}' => Value::Pairs(Rc::default()),
            b'K' => Value::Number(source.byte()?.into()),
            b'M' => Value::Number(u16::from_le_bytes(source.array()?).into()),
            b'J' => Value::Number(i32::from_le_bytes(source.array()?).into()),
            0x8a => {
                let count = source.byte()?;
                let digits = source.take(count.into())?;
                // Only the beginning of the file is this long, and its lowest bytes tell it from any other.
                let lowest =
                    digits.iter().take(8).rev().fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
                Value::Number(lowest)
            }
            b'X' => {
                let count = u32::from_le_bytes(source.array()?) as usize;
                let text = str::from_utf8(source.take(count)?).map_err(|_| "a text in it is none")?;
                Value::Text(text.into())
            }
            b'c' => Value::Name(name(source.line()?, source.line()?)?),
            0x85 => self.tuple(1)?,
            0x86 => self.tuple(2)?,
            0x87 => self.tuple(3)?,
            b't' => {
                let mark = self.mark()?;
                let items = self.stack.split_off(mark + 1);
                self.stack.pop();
                tuple(items)?
            }
            b'Q' => storage(&self.pop()?)?,
            b'R' => self.call()?,
            other => {
                return Err(format!("a pickle with the instruction {other:#04x}, which no tensor needs"));
            }
        };
        self.stack.push(value);
        Ok(None)
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.stack.pop().ok_or_else(|| "a pickle that takes more than it put there".to_owned())
    }

    fn mark(&self) -> Result<usize, String> {
        let at = self.stack.iter().rposition(|value| matches!(value, Value::Mark));
        at.ok_or_else(|| "a pickle that ends what it did not begin".to_owned())
    }

    fn remember(&mut self, place: u32) -> Result<(), String> {
        let value = self.stack.last().cloned().ok_or("a pickle that remembers nothing")?;
        self.memo.insert(place, value);
        Ok(())
    }

    fn recall(&self, place: u32) -> Result<Value, String> {
        self.memo.get(&place).cloned().ok_or_else(|| "a pickle that recalls what it never saw".to_owned())
    }

    fn tuple(&mut self, count: usize) -> Result<Value, String> {
        let at = self.stack.len().checked_sub(count).ok_or("a pickle that takes more than it put there")?;
        tuple(self.stack.split_off(at))
    }

    fn set_one(&mut self) -> Result<(), String> {
        let (value, key) = (self.pop()?, self.pop()?);
        self.set(vec![(key, value)])
    }

    fn set_all(&mut self) -> Result<(), String> {
        let mark = self.mark()?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        let pairs = items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        self.set(pairs)
    }

    fn set(&mut self, new: Vec<(Value, Value)>) -> Result<(), String> {
        match self.stack.last_mut() {
            // What is remembered of it stays as it was: nobody recalls a dictionary to read in it.
            Some(Value::Pairs(pairs)) => {
                // Only the outermost dictionary has tensors; what others hold is of no use here, and could be deep.
                let is_kept = |(_, value): &(Value, Value)| matches!(value, Value::View(_));
                let mut all = pairs.as_ref().clone();
                all.extend(new.into_iter().filter(is_kept));
                *pairs = Rc::new(all);
                Ok(())
            }
            _ => Err("a pickle that fills what is no dictionary".to_owned()),
        }
    }

    fn append_all(&mut self) -> Result<(), String> {
        let mark = self.mark()?;
        let items = self.stack.split_off(mark + 1);
        self.stack.pop();
        match self.pop()? {
            Value::Tuple(list, _) if list.is_empty() => {
                self.stack.push(tuple(items)?);
                Ok(())
            }
            _ => Err("a pickle that fills what is no empty list".to_owned()),
        }
    }

    /// What would be a call, and is not.
    fn call(&mut self) -> Result<Value, String> {
        let (arguments, called) = (self.pop()?, self.pop()?);
        match (called, arguments) {
            (Value::Name(Name::Dictionary), Value::Tuple(nothing, _)) if nothing.is_empty() => {
                Ok(Value::Pairs(Rc::default()))
            }
            (Value::Name(Name::Rebuild), Value::Tuple(arguments, _)) => view(&arguments),
            _ => Err("a pickle that calls something, which no tensor needs".to_owned()),
        }
    }
}

fn name(module: &[u8], name: &[u8]) -> Result<Name, String> {
    match (module, name) {
        (b"collections", b"OrderedDict") => Ok(Name::Dictionary),
        (b"torch._utils", b"_rebuild_tensor_v2") => Ok(Name::Rebuild),
        (b"torch", b"FloatStorage") => Ok(Name::Storage(FLOAT)),
        (b"torch", b"LongStorage") => Ok(Name::Storage(8)),
        (module, name) => Err(format!(
            "a pickle that names {}.{}, which no tensor needs",
            String::from_utf8_lossy(module),
            String::from_utf8_lossy(name)
        )),
    }
}

fn tuple(items: Vec<Value>) -> Result<Value, String> {
    let depth = items.iter().map(|item| if let Value::Tuple(_, depth) = item { depth + 1 } else { 1 }).max();
    match depth.unwrap_or(0) {
        depth if depth > DEPTH_MAX => Err("a pickle deeper than any tensor".to_owned()),
        depth => Ok(Value::Tuple(items.into(), depth)),
    }
}

/// `('storage', FloatStorage, key, 'cpu', count, None)`
fn storage(told: &Value) -> Result<Value, String> {
    if let Value::Tuple(told, _) = told
        && let [Value::Text(_), Value::Name(Name::Storage(width)), Value::Text(key), ..] = told.as_ref()
    {
        return Ok(Value::Storage(Rc::new(Storage { key: Rc::clone(key), width: *width })));
    }
    Err("a pickle that refers to something that is no storage".to_owned())
}

/// `(storage, offset, shape, strides, …)`
fn view(arguments: &[Value]) -> Result<Value, String> {
    let sizes = |value: &Value| match value {
        Value::Tuple(sizes, _) => sizes.iter().map(size).collect::<Option<Vec<_>>>(),
        _ => None,
    };
    if let [Value::Storage(storage), offset, shape, strides, ..] = arguments
        && let (Some(offset), Some(shape), Some(strides)) = (size(offset), sizes(shape), sizes(strides))
        && shape.len() == strides.len()
    {
        return Ok(Value::View(Rc::new(View { storage: Rc::clone(storage), offset, shape, strides })));
    }
    Err("a tensor that is not written as torch writes them".to_owned())
}

fn size(value: &Value) -> Option<usize> {
    match value {
        Value::Number(number) => usize::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three tensors as torch writes them, one of them turned around in its storage, and one of whole numbers.
    const WHOLE: &[u8] = include_bytes!("tensors.pickle");

    #[test]
    fn tensors_are_read_as_they_lie_in_their_storages() {
        let tensors = tensors(WHOLE).unwrap();
        assert_eq!(tensors.keys().collect::<Vec<_>>(), ["b", "w"], "whole numbers are left out");
        assert_eq!(tensors["w"], Array { shape: vec![3, 2], numbers: vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0] });
        assert_eq!(tensors["b"], Array { shape: vec![2], numbers: vec![0.5, -0.5] });
    }

    #[test]
    fn what_is_cut_or_damaged_is_refused_or_something_else_and_never_the_end() {
        for end in 0..WHOLE.len() {
            assert!(tensors(&WHOLE[..end]).is_err(), "{end}");
        }
        for at in 0..WHOLE.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = WHOLE.to_vec();
                damaged[at] ^= flip;
                drop(tensors(&damaged));
            }
        }
    }

    /// `cos\nsystem\n(S'…'\ntR.` in its usual spellings.
    #[test]
    fn a_pickle_that_would_run_something_is_refused_by_what_it_names() {
        let magic = &WHOLE[..15];
        for (program, told) in [
            (&b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R."[..], "os.system"),
            (b"\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R.", "__builtin__.eval"),
            (b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R.", "calls something"),
            (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "instruction 0x8c"),
            (b"\x80\x02ios\nsystem\n.", "instruction 0x69"),
        ] {
            let refused = tensors(&[magic, program].concat()).unwrap_err();
            assert!(refused.contains(told), "{refused}");
        }
        let deep = [magic, b"\x80\x02)", &b"\x85".repeat(100_000), b"."].concat();
        assert!(tensors(&deep).unwrap_err().contains("deeper"));
    }
}
