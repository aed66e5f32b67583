//! The macros that declare operators: `op!` one of them, `family!` several of one kind, `ops!` the
//! list.

use crate::op::attr::{Attr, AttrValue};

/// The attributes that are printed, in their order.
pub(in crate::op) fn by_name(
    attrs: impl IntoIterator<Item = Option<(&'static str, Attr)>>,
) -> Vec<(&'static str, Attr)> {
    let mut attrs: Vec<_> = attrs.into_iter().flatten().collect();
    attrs.sort_unstable_by_key(|(name, _)| *name);
    attrs
}

/// An attribute as it is printed. It is not at its default, so that a text stays valid and short
/// when an operator gets a further attribute with a default.
pub(in crate::op) fn printed<T: AttrValue>(
    name: &'static str,
    value: &T,
    default: Option<T>,
) -> Option<(&'static str, Attr)> {
    let attr = value.to_attr()?;
    let default = default.and_then(|default| default.to_attr());
    (default.as_ref() != Some(&attr)).then_some((name, attr))
}

/// A default, if there is one.
macro_rules! optional {
    () => {
        None
    };
    ($default:expr) => {
        Some($default)
    };
}
pub(crate) use optional;

/// Declares an operator: its name in the text form, the facts that hold of it, `NONE` at least, and
/// its attributes, printed in alphabetical order, those with a default only where they differ from
/// it.
macro_rules! op {
    ($(#[$meta:meta])* pub struct $op:ident = $name:literal is $($fact:ident)|+ {
        $($(#[$fmeta:meta])* pub $field:ident: $ty:ty $(= $default:expr)?),* $(,)?
        $(; pub $settings:ident: $settings_ty:ty)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $op {
            $($(#[$fmeta])* pub $field: $ty,)*
            $(#[doc = "Its other attributes."] pub $settings: $settings_ty,)?
        }

        $crate::op::declare::equal_as_printed!($op);

        impl $crate::op::OpText for $op {
            fn name(&self) -> &'static str {
                $name
            }

            fn facts(&self) -> $crate::op::Traits {
                $crate::op::Traits::NONE$(.union($crate::op::Traits::$fact))+
            }

            fn attrs(&self) -> Vec<(&'static str, $crate::op::attr::Attr)> {
                let own = [$($crate::op::declare::printed(
                    stringify!($field),
                    &self.$field,
                    $crate::op::declare::optional!($($default)?),
                )),*];
                $(let own = own.into_iter().chain(self.$settings.attrs().into_iter().map(Some));)?
                $crate::op::declare::by_name(own)
            }

            fn at_rows(&mut self, rows: &$crate::types::Dim) {
                let _ = rows;
                $($crate::op::attr::AttrValue::at_rows(&mut self.$field, rows);)*
                $(self.$settings.at_rows(rows);)?
            }

            fn depends_on_batch(&self) -> bool {
                false
                    $(|| $crate::op::attr::AttrValue::depends_on_batch(&self.$field))*
                    $(|| self.$settings.depends_on_batch())?
            }
        }

        impl $crate::op::OpRead for $op {
            const NAMES: &'static [&'static str] = &[$name];

            fn read(
                _name: &'static str,
                reader: &mut $crate::op::attr::AttrReader,
            ) -> Result<Self, $crate::op::attr::AttrError> {
                let _ = &reader;
                Ok(Self {
                    $($field: reader.take(
                        stringify!($field),
                        $crate::op::declare::optional!($($default)?),
                    )?,)*
                    $($settings: <$settings_ty>::read(reader)?,)?
                })
            }
        }
    };
}
pub(crate) use op;

/// Declares attributes that several operators have, each with a default.
macro_rules! settings {
    ($(#[$meta:meta])* pub struct $settings:ident {
        $($(#[$fmeta:meta])* pub $field:ident: $ty:ty = $default:expr),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $settings { $($(#[$fmeta])* pub $field: $ty),* }

        impl Default for $settings {
            fn default() -> Self {
                Self { $($field: $default),* }
            }
        }

        impl $settings {
            pub(in crate::op) fn attrs(&self) -> Vec<(&'static str, $crate::op::attr::Attr)> {
                use $crate::op::declare::{by_name, printed};
                by_name([$(printed(stringify!($field), &self.$field, Some($default))),*])
            }

            pub(in crate::op) fn at_rows(&mut self, rows: &$crate::types::Dim) {
                $($crate::op::attr::AttrValue::at_rows(&mut self.$field, rows);)*
            }

            pub(in crate::op) fn depends_on_batch(&self) -> bool {
                false $(|| $crate::op::attr::AttrValue::depends_on_batch(&self.$field))*
            }

            pub(in crate::op) fn read(
                reader: &mut $crate::op::attr::AttrReader,
            ) -> Result<Self, $crate::op::attr::AttrError> {
                Ok(Self { $($field: reader.take(stringify!($field), Some($default))?),* })
            }
        }
    };
}
pub(crate) use settings;

/// Operators are equal where name and attributes are: floats by their bits.
macro_rules! equal_as_printed {
    ($op:ident) => {
        impl PartialEq for $op {
            // Not derived: `-0.0` and `0.0` are different attributes, and a NaN equals itself.
            fn eq(&self, other: &Self) -> bool {
                use $crate::op::OpText;
                self.name() == other.name() && self.attrs() == other.attrs()
            }
        }
    };
}
pub(crate) use equal_as_printed;

/// Declares a family of operators that share one implementation: an enum with a name for each
/// variant, some attributes of which all may have; or a kind with attributes of which each kind
/// lacks some.
macro_rules! family {
    (
        $(#[$meta:meta])* pub enum $op:ident is $($fact:ident)|+ with [$($shared:tt)*] {
            $($variants:tt)*
        }
    ) => {
        $crate::op::declare::family!(
            @next [$($shared)*] [$(#[$meta])* pub enum $op is $($fact)|+] {} {} $($variants)*
        );
    };
    // One variant after the other: with the shared attributes, and the pattern that takes these.
    (
        @next [$($(#[$fmeta:meta])* $field:ident: $ty:ty $(= $default:expr)?,)*] $head:tt
        { $($done:tt)* } { $($patterns:tt)* }
        $(#[$vmeta:meta])* $variant:ident = $name:literal $({ $($own:tt)* })?, $($rest:tt)*
    ) => {
        $crate::op::declare::family!(
            @next [$($(#[$fmeta])* $field: $ty $(= $default)?,)*] $head
            {
                $($done)*
                $(#[$vmeta])* $variant = $name {
                    $($(#[$fmeta])* $field: $ty $(= $default)?,)* $($($own)*)?
                },
            }
            { $($patterns)* Self::$variant { $($field,)* .. } => ($($field,)*), }
            $($rest)*
        );
    };
    (
        @next [$($(#[$fmeta:meta])* $field:ident: $ty:ty $(= $default:expr)?,)*]
        [$(#[$meta:meta])* pub enum $op:ident is $($fact:ident)|+]
        { $($done:tt)* } { $($patterns:tt)* }
    ) => {
        $crate::op::declare::family! {
            $(#[$meta])* pub enum $op is $($fact)|+ { $($done)* }
        }
        #[allow(dead_code, clippy::match_same_arms, reason = "a variant each, read or changed")]
        impl $op {
            /// The attributes that all of them have.
            pub(in crate::op) const fn common(&self) -> ($(&$ty,)*) {
                match self { $($patterns)* }
            }
            /// The same, to be changed.
            pub(in crate::op) const fn common_mut(&mut self) -> ($(&mut $ty,)*) {
                match self { $($patterns)* }
            }
        }
    };
    ($(#[$meta:meta])* pub enum $op:ident is $($fact:ident)|+ {
        $($(#[$vmeta:meta])* $variant:ident = $name:literal $({
            $($(#[$fmeta:meta])* $field:ident: $ty:ty $(= $default:expr)?),* $(,)?
        })?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub enum $op { $($(#[$vmeta])* $variant $({ $($(#[$fmeta])* $field: $ty),* })?),* }

        $crate::op::declare::equal_as_printed!($op);

        impl $crate::op::OpText for $op {
            fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name),* }
            }

            fn facts(&self) -> $crate::op::Traits {
                $crate::op::Traits::NONE$(.union($crate::op::Traits::$fact))+
            }

            fn attrs(&self) -> Vec<(&'static str, $crate::op::attr::Attr)> {
                #[allow(clippy::match_same_arms, reason = "some variants have no attributes")]
                match self {
                    $(Self::$variant $({ $($field),* })? => $crate::op::declare::by_name([$($(
                        $crate::op::declare::printed(
                            stringify!($field),
                            $field,
                            $crate::op::declare::optional!($($default)?),
                        ),
                    )*)?]),)*
                }
            }

            fn at_rows(&mut self, rows: &$crate::types::Dim) {
                let _ = rows;
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        $($($crate::op::attr::AttrValue::at_rows($field, rows);)*)?
                    })*
                }
            }

            fn depends_on_batch(&self) -> bool {
                #[allow(clippy::match_same_arms, reason = "some variants have no attributes")]
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        false $($(|| $crate::op::attr::AttrValue::depends_on_batch($field))*)?
                    })*
                }
            }
        }

        impl $crate::op::OpRead for $op {
            const NAMES: &'static [&'static str] = &[$($name),*];

            fn read(
                name: &'static str,
                reader: &mut $crate::op::attr::AttrReader,
            ) -> Result<Self, $crate::op::attr::AttrError> {
                let _ = &reader;
                match name {
                    $($name => Ok(Self::$variant $({ $($field: reader.take(
                        stringify!($field),
                        $crate::op::declare::optional!($($default)?),
                    )?),* })?),)*
                    _ => Err($crate::op::attr::AttrError::UnknownOp(name.to_owned())),
                }
            }
        }
    };
    (
        $(#[$meta:meta])* pub struct $op:ident is $($fact:ident)|+
        of $kind:ident with $settings:ident {
            $($(#[$vmeta:meta])* $variant:ident = $name:literal without [$($other:ident),*]),*
            $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $op {
            #[doc = "Which of them it is."]
            pub kind: $kind,
            #[doc = "Its attributes; those that it has not have their defaults."]
            pub settings: $settings,
        }

        $crate::op::declare::equal_as_printed!($op);

        impl $kind {
            /// The attributes that it has not.
            pub(in crate::op) const fn without(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$(stringify!($other)),*]),* }
            }
        }

        impl $crate::op::OpText for $op {
            fn name(&self) -> &'static str {
                self.kind.name()
            }

            fn facts(&self) -> $crate::op::Traits {
                $crate::op::Traits::NONE$(.union($crate::op::Traits::$fact))+
            }

            fn attrs(&self) -> Vec<(&'static str, $crate::op::attr::Attr)> {
                self.settings.attrs()
            }

            fn at_rows(&mut self, rows: &$crate::types::Dim) {
                self.settings.at_rows(rows);
            }

            fn depends_on_batch(&self) -> bool {
                self.settings.depends_on_batch()
            }
        }

        impl $crate::op::OpRead for $op {
            const NAMES: &'static [&'static str] = &[$($name),*];

            fn read(
                name: &'static str,
                reader: &mut $crate::op::attr::AttrReader,
            ) -> Result<Self, $crate::op::attr::AttrError> {
                let kind = match name {
                    $($name => $kind::$variant,)*
                    _ => return Err($crate::op::attr::AttrError::UnknownOp(name.to_owned())),
                };
                reader.refuse(kind.without())?;
                Ok(Self { kind, settings: $settings::read(reader)? })
            }
        }
    };
}
pub(crate) use family;

/// The list of all operators: a module and a type for each line, one variant of `Op`.
macro_rules! ops {
    ($($(#[$meta:meta])* $vis:vis $module:ident::$op:ident),* $(,)?) => {
        $($vis use $module::$op;)*

        /// An operator with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Op { $($(#[$meta])* #[doc = concat!("`", stringify!($op), "`.")] $op($op)),* }

        $(impl From<$op> for Op {
            fn from(op: $op) -> Self {
                Self::$op(op)
            }
        })*

        impl Op {
            /// The name of every operator, in the order of the list.
            pub fn names() -> impl Iterator<Item = &'static str> {
                [$(<$op as OpRead>::NAMES),*].into_iter().flatten().copied()
            }

            /// Whether all of these facts hold of it.
            pub fn is(&self, traits: Traits) -> bool {
                self.traits().contains(traits)
            }

            /// The operator with this name and these attributes.
            pub fn read(name: &str, attrs: Vec<(String, Attr)>) -> Result<Self, AttrError> {
                $(if let Some(known) = <$op as OpRead>::NAMES.iter().find(|n| **n == name) {
                    let mut reader = AttrReader::new(known, attrs);
                    let op = <$op as OpRead>::read(known, &mut reader)?;
                    reader.finish()?;
                    return Ok(Self::$op(op));
                })*
                Err(AttrError::UnknownOp(name.to_owned()))
            }

            /// The types of the results, and their integer values where they are known.
            pub fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
                let mut results = OpDef::infer(&**self, operands)?;
                infer::evaluate_known(self, operands, &mut results);
                Ok(results)
            }

            /// The claims of the results: the split rule, or the rule for partial operands where
            /// there are some.
            pub fn split(
                &self,
                operands: &[SplitOperand<'_>],
                results: &[TensorType],
            ) -> Result<Claims, Refusal> {
                $crate::op::rules::one_block(self, operands)?;
                $crate::op::rules::own(self, operands)?;
                let at = Splitting { operands, results };
                match $crate::op::rules::first_partial(operands) {
                    None => OpDef::split(&**self, &at),
                    Some(_) => self.partial(&at),
                }
            }
        }

        impl std::ops::Deref for Op {
            type Target = dyn OpDef;

            fn deref(&self) -> &Self::Target {
                match self { $(Self::$op(op) => op),* }
            }
        }

        impl std::ops::DerefMut for Op {
            fn deref_mut(&mut self) -> &mut Self::Target {
                match self { $(Self::$op(op) => op),* }
            }
        }
    };
}
pub(crate) use ops;
