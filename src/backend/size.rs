//! Sizes in bytes.

use super::RunError;
use crate::lower::Port;
use crate::types::Device;
use crate::types::invariant::int;

/// The bytes of a port at a batch of `n` rows.
///
/// # Errors
/// A size that is no number of bytes, which no port of a bound program has.
pub(super) fn port_bytes(port: &Port, n: i64) -> Result<usize, RunError> {
    // The sizes at `n` are multiplied, not the functions of it: every run asks.
    let each = int::<i64>(port.ty.dtype.bytes());
    let bytes = port.ty.shape.iter().map(|dim| dim.eval(n)).fold(each, i64::saturating_mul);
    usize::try_from(bytes).map_err(|_| RunError::Internal {
        device: Device::HOST,
        label: port.name.to_string(),
        reason: format!("{} of {n} rows takes {bytes} bytes", port.ty),
    })
}

#[cfg(test)]
mod tests {
    use super::port_bytes;
    use crate::lower::Port;
    use crate::types::{DType, Dim, TensorType};

    #[test]
    fn a_size_below_zero_is_an_error_that_names_the_port() {
        let rows = Dim::n() - 3;
        let port = Port { name: "x".into(), ty: TensorType::new(DType::F32, [rows].as_slice()) };
        assert_eq!(port_bytes(&port, 5), Ok(8));
        let said = port_bytes(&port, 1).unwrap_err().to_string();
        assert!(said.starts_with("internal error on cpu:0 in `x`: "), "{said}");
        assert!(said.ends_with("of 1 rows takes -8 bytes"), "{said}");
    }
}
