//! The operators of a framework that are read by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Custom, CustomOp, guarded};
use crate::op::attr::{Attr, AttrError, AttrReader};
use crate::op::{Op, OpText};

/// Makes an operator of the attributes that were read.
type Read = dyn Fn(&mut AttrReader) -> Result<Custom, AttrError> + Send + Sync;

/// The operators of a framework: those that a text or a JSON file may name beside fanwise's own.
///
/// ```
/// use fanwise::op::{Attr, CustomOp, CustomOps, Sharding};
/// use fanwise::types::{Tensor, TensorType};
///
/// /// Every element times a number.
/// struct Scale {
///     by: f64,
/// }
///
/// impl CustomOp for Scale {
///     fn name(&self) -> &'static str {
///         "com.acme.Scale"
///     }
///     fn attrs(&self) -> Vec<(&'static str, Attr)> {
///         vec![("by", Attr::Float(self.by))]
///     }
///     fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
///         Ok(operands.to_vec())
///     }
///     fn split(&self, operands: &[Sharding]) -> Result<Vec<Sharding>, String> {
///         Ok(operands.to_vec())
///     }
///     fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
///         let mut y = (*operands.first().ok_or("no operand")?).clone();
///         y.as_mut_slice::<f32>().iter_mut().for_each(|x| *x *= self.by as f32);
///         Ok(vec![y])
///     }
/// }
///
/// let ops = CustomOps::default()
///     .with("com.acme.Scale", |attrs| Ok(Scale { by: attrs.take("by", Some(1.0))? }));
/// let text = "fanwise 1
/// symbol N >= 0
/// graph @g(%x: f32[N]) -> (y: f32[N]) {
///   %y : f32[N] = com.acme.Scale(%x) {by=0.5}
///   return %y
/// }
/// ";
/// let graph = fanwise::ir::parse_with(text, &ops)?;
/// assert_eq!(graph.to_string(), text);
/// # Ok::<(), fanwise::ir::ParseError>(())
/// ```
#[derive(Clone, Default)]
pub struct CustomOps {
    ops: BTreeMap<&'static str, Arc<Read>>,
}

impl CustomOps {
    /// The same with the operator `name`, which `read` makes of its attributes; an operator that
    /// had the name before has it no more.
    #[must_use]
    pub fn with<T: CustomOp>(
        mut self,
        name: &'static str,
        read: impl Fn(&mut AttrReader) -> Result<T, AttrError> + Send + Sync + 'static,
    ) -> Self {
        self.ops.insert(name, Arc::new(move |attrs| read(attrs).map(Custom::new)));
        self
    }

    /// The names that are registered, in alphabetical order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.ops.keys().copied()
    }

    /// The operator with this name and these attributes: a registered one, or one of fanwise's own.
    pub(crate) fn read(&self, name: &str, attrs: Vec<(String, Attr)>) -> Result<Op, AttrError> {
        let Some((name, read)) = self.ops.get_key_value(name) else {
            return match Op::read(name, attrs) {
                Err(AttrError::UnknownOp(name)) if name.contains('.') => {
                    Err(AttrError::Unregistered(name))
                }
                known => known,
            };
        };
        let mut reader = AttrReader::new(name, attrs);
        let op = guarded(|| Ok(read(&mut reader)));
        let op = op.map_err(|reason| AttrError::Custom { op: name, reason })??;
        reader.finish()?;
        if op.name() != *name {
            let reason = format!("it is made as `{}`", op.name());
            return Err(AttrError::Custom { op: name, reason });
        }
        Ok(op.into())
    }
}

impl fmt::Debug for CustomOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
