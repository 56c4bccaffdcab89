//! Writes an ONNX file: the few kinds of protobuf fields that a graph of floats needs.

// Numbers of fields and types, as onnx.proto has them.
const FLOAT: u64 = 1;
const ATTRIBUTE_FLOAT: u64 = 1;
const ATTRIBUTE_NUMBER: u64 = 2;
const ATTRIBUTE_NUMBERS: u64 = 7;
/// The oldest that has every operator as it is used here.
const OPERATORS_VERSION: u64 = 13;
const FORMAT_VERSION: u64 = 8;

#[derive(Default)]
pub(super) struct Graph(Message);

pub(super) enum Attribute<'a> {
    Float(f32),
    Number(i64),
    Numbers(&'a [i64]),
}

impl Graph {
    pub(super) fn node(
        &mut self,
        operation: &str,
        inputs: &[&str],
        output: &str,
        attributes: &[(&str, Attribute)],
    ) {
        let mut node = Message::default();
        inputs.iter().for_each(|input| node.bytes(1, input.as_bytes()));
        node.bytes(2, output.as_bytes());
        node.bytes(4, operation.as_bytes());
        for (name, value) in attributes {
            let mut attribute = Message::default();
            attribute.bytes(1, name.as_bytes());
            let kind = match value {
                Attribute::Float(number) => {
                    attribute.four_bytes(2, number.to_le_bytes());
                    ATTRIBUTE_FLOAT
                }
                Attribute::Number(number) => {
                    attribute.number(3, number.cast_unsigned());
                    ATTRIBUTE_NUMBER
                }
                Attribute::Numbers(numbers) => {
                    numbers.iter().for_each(|number| attribute.number(8, number.cast_unsigned()));
                    ATTRIBUTE_NUMBERS
                }
            };
            attribute.number(20, kind);
            node.message(5, &attribute);
        }
        self.0.message(1, &node);
    }

    pub(super) fn tensor(&mut self, name: &str, shape: &[usize], numbers: &[f32]) {
        let mut tensor = Message::default();
        shape.iter().for_each(|size| tensor.number(1, *size as u64));
        tensor.number(2, FLOAT);
        tensor.bytes(8, name.as_bytes());
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        tensor.bytes(9, &bytes);
        self.0.message(5, &tensor);
    }

    /// Of any number of pictures at once.
    pub(super) fn input(&mut self, name: &str, shape: &[u64]) {
        self.value(11, name, shape);
    }

    pub(super) fn output(&mut self, name: &str, shape: &[u64]) {
        self.value(12, name, shape);
    }

    fn value(&mut self, field: u64, name: &str, shape: &[u64]) {
        let mut dimensions = Message::default();
        let mut any = Message::default();
        any.bytes(2, b"n");
        dimensions.message(1, &any);
        for size in shape {
            let mut dimension = Message::default();
            dimension.number(1, *size);
            dimensions.message(1, &dimension);
        }
        let (mut tensor, mut kind, mut value) = (Message::default(), Message::default(), Message::default());
        tensor.number(1, FLOAT);
        tensor.message(2, &dimensions);
        kind.message(1, &tensor);
        value.bytes(1, name.as_bytes());
        value.message(2, &kind);
        self.0.message(field, &value);
    }

    pub(super) fn file(mut self, name: &str) -> Vec<u8> {
        self.0.bytes(2, name.as_bytes());
        let (mut model, mut operators) = (Message::default(), Message::default());
        model.number(1, FORMAT_VERSION);
        model.bytes(2, b"remuda");
        operators.bytes(1, b"");
        operators.number(2, OPERATORS_VERSION);
        model.message(8, &operators);
        model.message(7, &self.0);
        model.0
    }
}

#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.varint(field << 3);
        self.varint(number);
    }

    fn four_bytes(&mut self, field: u64, bytes: [u8; 4]) {
        self.varint(field << 3 | 5);
        self.0.extend_from_slice(&bytes);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }
}
